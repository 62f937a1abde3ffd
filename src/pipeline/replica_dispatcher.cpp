// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/pipeline/replica_dispatcher.hpp>

#include <chrono>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace dflash::pipeline {

class ReplicaDispatcher::State : public std::enable_shared_from_this<State> {
  public:
    State(std::vector<Replica> replicas, FirstError& first_error) : first_error_(first_error) {
        DFLASH_CHECK(!replicas.empty(), "a dispatcher without replicas");
        for (Replica& replica : replicas) {
            DFLASH_CHECK(replica.capacity >= 1, "a replica of capacity {}", replica.capacity);
            desks_.emplace_back().replica = std::move(replica);
        }
    }

    void add(RowPtr row, int slot, std::function<void()> done) {
        {
            const std::lock_guard lock(mutex_);
            queue_.push_back({std::move(row), slot, std::move(done)});
        }
        dispatch();
    }

    int num_replicas() const { return static_cast<int>(desks_.size()); }

    std::int64_t num_queued() const {
        const std::lock_guard lock(mutex_);
        return static_cast<std::int64_t>(queue_.size());
    }

    std::vector<ReplicaStats> stats() const {
        const std::lock_guard lock(mutex_);
        std::vector<ReplicaStats> all;
        for (const Desk& desk : desks_) {
            all.push_back(desk.stats);
            if (desk.stats.rows_in_flight == 0) {
                all.back().idle_s += seconds_since(desk.idle_since);
            }
        }
        return all;
    }

  private:
    using Clock = std::chrono::steady_clock;

    struct Job {
        RowPtr row;
        int slot;
        std::function<void()> done;
    };

    /// A replica and what it holds.
    struct Desk {
        Replica replica;
        ReplicaStats stats;
        Clock::time_point idle_since = Clock::now();
    };

    static double seconds_since(Clock::time_point start) {
        return std::chrono::duration<double>(Clock::now() - start).count();
    }

    /// Hands out queued rows while replicas are free. One thread at a time does so, without the
    /// lock held: a replica may call `done` inside its `start`, and however long the queue is, that
    /// must not nest.
    void dispatch() noexcept {
        std::unique_lock lock(mutex_);
        if (dispatching_) {
            return;  // the thread that is at it looks again before it leaves
        }
        dispatching_ = true;
        try {
            while (!queue_.empty()) {
                const std::optional<std::size_t> free = first_free();
                if (!free || first_error_.failed()) {
                    break;
                }
                Job job = std::move(queue_.front());
                queue_.pop_front();
                take_row(desks_[*free]);
                lock.unlock();
                start_on(*free, std::move(job));
                lock.lock();
            }
            dispatching_ = false;
        } catch (...) {
            // `dispatching_` stays set, so nothing follows the row that could not be started.
            first_error_.store(std::current_exception());
        }
    }

    std::optional<std::size_t> first_free() const {
        std::optional<std::size_t> best;
        for (std::size_t i = 0; i < desks_.size(); ++i) {
            const int load = desks_[i].stats.rows_in_flight;
            if (load < desks_[i].replica.capacity &&
                (!best || load < desks_[*best].stats.rows_in_flight)) {
                best = i;
            }
        }
        return best;
    }

    static void take_row(Desk& desk) {
        if (desk.stats.rows_in_flight++ == 0) {
            desk.stats.idle_s += seconds_since(desk.idle_since);
        }
    }

    void start_on(std::size_t desk, Job job) {
        auto finished = [self = shared_from_this(), desk, done = std::move(job.done)] {
            try {
                self->row_finished(desk);
                done();
            } catch (...) {
                self->first_error_.store(std::current_exception());
            }
        };
        desks_[desk].replica.start(std::move(job.row), job.slot, std::move(finished));
    }

    void row_finished(std::size_t index) {
        {
            const std::lock_guard lock(mutex_);
            Desk& desk = desks_[index];
            DFLASH_CHECK(desk.stats.rows_in_flight > 0, "replica {} finished a row twice", index);
            ++desk.stats.rows_done;
            if (--desk.stats.rows_in_flight == 0) {
                desk.idle_since = Clock::now();
            }
        }
        dispatch();  // before the row travels on: the replica should not stand idle
    }

    FirstError& first_error_;
    std::vector<Desk> desks_;   // the vector and the replicas never change
    mutable std::mutex mutex_;  // guards: all below and what desks_ count
    std::deque<Job> queue_;
    bool dispatching_ = false;
};

ReplicaDispatcher::ReplicaDispatcher(std::vector<Replica> replicas, FirstError& first_error)
    : state_(std::make_shared<State>(std::move(replicas), first_error)) {}

ReplicaDispatcher::~ReplicaDispatcher() = default;

void ReplicaDispatcher::start(RowPtr row, int slot, std::function<void()> done) {
    state_->add(std::move(row), slot, std::move(done));
}

int ReplicaDispatcher::num_replicas() const {
    return state_->num_replicas();
}

std::int64_t ReplicaDispatcher::num_queued() const {
    return state_->num_queued();
}

std::vector<ReplicaStats> ReplicaDispatcher::stats() const {
    return state_->stats();
}

}  // namespace dflash::pipeline
