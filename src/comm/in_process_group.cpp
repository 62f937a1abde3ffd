// SPDX-License-Identifier: Apache-2.0
#include <dflash/comm/in_process_group.hpp>
#include <dflash/core/check.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace dflash::comm {

InProcessGroup::InProcessGroup(int num_ranks, FirstError& first_error)
    : num_ranks_(num_ranks),
      first_error_(first_error),
      board_(std::make_shared<CollectiveBoard>(num_ranks)),
      arrived_(narrow<std::size_t>(num_ranks)),
      entries_(narrow<std::size_t>(num_ranks)),
      subscription_(first_error.on_error([this] {
          // With the lock held nobody is between looking at FirstError and falling asleep.
          { const std::lock_guard lock(mutex_); }
          changed_.notify_all();
      })) {
    DFLASH_CHECK(num_ranks >= 1, "{} ranks", num_ranks);
}

void InProcessGroup::barrier(int rank) {
    DFLASH_CHECK(rank >= 0 && rank < num_ranks_, "rank {} of {}", rank, num_ranks_);
    const CollectiveScope scope(*board_, rank, "barrier");
    meet(rank, /*then_work=*/false);
}

void InProcessGroup::all_reduce(int rank, Buffer& buffer, gpu::StreamView stream) {
    if (num_ranks_ == 1) {
        return;
    }
    DFLASH_CHECK(rank >= 0 && rank < num_ranks_, "rank {} of {}", rank, num_ranks_);
    const CollectiveScope scope(*board_, rank, "all_reduce");
    Entry& own = entry(rank);
    own.collective = Collective::AllReduce;
    own.root = 0;
    own.size = buffer.size();
    own.buffer = &buffer;
    own.ready.record(stream);

    work_together(rank, [&] {
        check_entries(own);
        std::vector<const Buffer*> buffers;
        for (const Entry& other : entries_) {
            other.ready.wait(stream);
            buffers.push_back(other.buffer);
        }
        const Part part = part_of(rank, own.size);
        if (part.count > 0) {
            buffer.sum_of(buffers, part.offset, part.count);
        }
        own.summed.record(stream);
    });
    work_together(rank, [&] {
        for (int r = 0; r < num_ranks_; ++r) {
            const Part part = part_of(r, own.size);
            if (r != rank && part.count > 0) {
                entry(r).summed.wait(stream);
                buffer.copy_of(*entry(r).buffer, part.offset, part.count);
            }
        }
        own.taken.record(stream);
    });
    meet(rank, /*then_work=*/false);
    own.buffer = nullptr;
    for (const Entry& other : entries_) {
        other.taken.wait(stream);
    }
}

void InProcessGroup::broadcast(int rank, int root, Buffer& buffer, gpu::StreamView stream) {
    DFLASH_CHECK(rank >= 0 && rank < num_ranks_, "rank {} of {}", rank, num_ranks_);
    DFLASH_CHECK(root >= 0 && root < num_ranks_, "root {} of {}", root, num_ranks_);
    if (num_ranks_ == 1) {
        return;
    }
    const CollectiveScope scope(*board_, rank, "broadcast");
    Entry& own = entry(rank);
    own.collective = Collective::Broadcast;
    own.root = root;
    own.size = buffer.size();
    own.buffer = &buffer;
    own.ready.record(stream);

    work_together(rank, [&] {
        check_entries(own);
        if (rank != root) {
            entry(root).ready.wait(stream);
            buffer.copy_of(*entry(root).buffer, 0, own.size);
        }
        own.taken.record(stream);
    });
    meet(rank, /*then_work=*/false);
    own.buffer = nullptr;
    if (rank == root) {
        for (const Entry& other : entries_) {
            other.taken.wait(stream);
        }
    }
}

/// The barrier. A rank that goes on to work counts as working from the moment it passes, so that a
/// failing rank can wait until nobody reads its buffer.
void InProcessGroup::meet(int rank, bool then_work) {
    std::unique_lock lock(mutex_);
    if (first_error_.failed()) {
        fail_when_idle(lock);
    }
    const auto place = static_cast<std::size_t>(rank);
    DFLASH_CHECK(rank >= 0 && rank < num_ranks_ && !arrived_[place],
                 "rank {} of {} is there already or does not exist",
                 rank,
                 num_ranks_);
    const std::size_t generation = generation_;
    arrived_[place] = true;
    ++num_arrived_;
    if (num_arrived_ == num_ranks_) {
        arrived_.assign(arrived_.size(), false);
        num_arrived_ = 0;
        ++generation_;
        changed_.notify_all();
    } else {
        changed_.wait(lock, [&] { return generation_ != generation || first_error_.failed(); });
    }
    if (first_error_.failed()) {
        fail_when_idle(lock);
    }
    num_working_ += then_work ? 1 : 0;
}

/// Runs `work` between this barrier and the next one.
void InProcessGroup::work_together(int rank, const std::function<void()>& work) {
    meet(rank, /*then_work=*/true);
    try {
        work();
    } catch (...) {
        first_error_.store(std::current_exception());
    }
    std::unique_lock lock(mutex_);
    --num_working_;
    changed_.notify_all();
    if (first_error_.failed()) {
        fail_when_idle(lock);
    }
}

/// After an error nobody begins to work any more, so this ends when the last work has.
void InProcessGroup::fail_when_idle(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [this] { return num_working_ == 0; });
    lock.unlock();
    std::rethrow_exception(first_error_.get());
}

void InProcessGroup::check_entries(const Entry& own) const {
    for (const Entry& other : entries_) {
        DFLASH_CHECK(other.buffer != nullptr && other.collective == own.collective &&
                         other.root == own.root && other.size == own.size,
                     "ranks in different collectives, or with buffers of {} and {} elements",
                     own.size,
                     other.size);
    }
}

InProcessGroup::Part InProcessGroup::part_of(int rank, std::size_t size) const {
    // Whole cache lines and vectors: 64 elements of 4 bytes.
    constexpr std::size_t kAlignment = 64;
    const auto num_ranks = static_cast<std::size_t>(num_ranks_);
    const std::size_t each =
        ((size + num_ranks - 1) / num_ranks + kAlignment - 1) / kAlignment * kAlignment;
    const std::size_t begin = std::min(static_cast<std::size_t>(rank) * each, size);
    return {.offset = begin, .count = std::min(each, size - begin)};
}

}  // namespace dflash::comm
