// SPDX-License-Identifier: Apache-2.0
// Collectives by the ranks' own threads, in a fixed order: the sum of D buffers is ((b0 + b1) + b2)
// +
// ..., element by element, whoever adds it and whoever comes first, so results do not depend on
// timing. Serves CPU devices and logical devices that share a GPU.
#pragma once

#include <dflash/comm/process_group.hpp>
#include <dflash/gpu/signal.hpp>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

namespace dflash::comm {

class InProcessGroup final : public ProcessGroup {
  public:
    /// `first_error` must outlive the group.
    InProcessGroup(int num_ranks, FirstError& first_error);

    int num_ranks() const override { return num_ranks_; }

    /// There is nothing to make.
    void join(int rank) override { barrier(rank); }

    void barrier(int rank) override;

    /// Each rank sums one part and takes the others from their owners, so it reads 2 (D-1)/D of the
    /// buffer's size from other ranks.
    void all_reduce(int rank, Buffer& buffer, gpu::StreamView stream = {}) override;

    void broadcast(int rank, int root, Buffer& buffer, gpu::StreamView stream = {}) override;

    std::shared_ptr<const CollectiveBoard> board() const override { return board_; }

  private:
    enum class Collective { AllReduce, Broadcast };

    /// What a rank brings to the collective under way. Written by the rank before a barrier, read
    /// by the others behind it.
    struct Entry {
        Collective collective = Collective::AllReduce;
        int root = 0;
        std::size_t size = 0;
        Buffer* buffer = nullptr;  // null outside of collectives
        gpu::Signal ready;         // the rank's own values are in its buffer
        gpu::Signal summed;        // the sums of its part are in its buffer
        gpu::Signal taken;         // it has read what it needs from the others
    };

    struct Part {
        std::size_t offset = 0;
        std::size_t count = 0;
    };

    void meet(int rank, bool then_work);
    void work_together(int rank, const std::function<void()>& work);
    [[noreturn]] void fail_when_idle(std::unique_lock<std::mutex>& lock);
    void check_entries(const Entry& own) const;
    Part part_of(int rank, std::size_t size) const;

    Entry& entry(int rank) { return entries_[static_cast<std::size_t>(rank)]; }

    int num_ranks_;
    FirstError& first_error_;
    std::shared_ptr<CollectiveBoard> board_;
    std::mutex mutex_;  // guards: arrived_, num_arrived_, generation_, num_working_
    std::condition_variable changed_;
    std::vector<bool> arrived_;  // [D] at the barrier
    int num_arrived_ = 0;
    std::size_t generation_ = 0;  // of the barrier
    int num_working_ = 0;         // ranks whose work may touch buffers
    std::vector<Entry> entries_;  // [D]
    FirstError::Subscription subscription_;
};

}  // namespace dflash::comm
