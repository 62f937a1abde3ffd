// SPDX-License-Identifier: Apache-2.0
// Collectives between the drafters of this process, one thread each, in a fixed order: the sum of D
// buffers is ((b0 + b1) + b2) + ..., element by element, whoever adds it and whoever comes first,
// so results do not depend on timing. Serves CPU devices and logical devices that share a GPU.
#pragma once

#include <dflash/core/first_error.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/gpu/signal.hpp>
#include <dflash/gpu/stream.hpp>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

namespace dflash::comm {

/// One rank's buffer in a collective, with the element-wise work on it: this module knows no
/// tensors. All ranks of one collective bring buffers of the same derived type and size. The work
/// is called on the thread of the rank that owns the buffer, and goes to the stream that this rank
/// gave to the collective; it reads the other ranks' buffers and writes only its own. Calls of
/// different ranks run at the same time, never on overlapping elements.
class Buffer {
  public:
    virtual ~Buffer() = default;

    /// Elements.
    virtual std::size_t size() const = 0;

    /// this[i] = ((ranks[0][i] + ranks[1][i]) + ranks[2][i]) + ... for i in [offset, offset +
    /// count). This buffer is one of `ranks`.
    virtual void sum_of(std::span<const Buffer* const> ranks,
                        std::size_t offset,
                        std::size_t count) = 0;

    /// this[i] = other[i] for i in [offset, offset + count).
    virtual void copy_of(const Buffer& other, std::size_t offset, std::size_t count) = 0;
};

/// fp32 in host memory, which the caller owns.
class HostBuffer final : public Buffer {
  public:
    explicit HostBuffer(std::span<float> values) : values_(values) {}

    std::size_t size() const override { return values_.size(); }

    void sum_of(std::span<const Buffer* const> ranks,
                std::size_t offset,
                std::size_t count) override;
    void copy_of(const Buffer& other, std::size_t offset, std::size_t count) override;

  private:
    std::span<float> values_;
};

/// The D ranks of a data-parallel group. Every rank calls the same collectives in the same order
/// from its own thread; anything else is an internal error where it can be seen.
///
/// When a call returns, the host may go on at once, and what this rank queues on its stream from
/// then on may read the result and overwrite the buffer. The Buffer objects may go as well; the
/// memory behind them stays until the stream has passed the collective.
///
/// Failure: an exception in the work of a rank goes to FirstError. An error there, whoever stored
/// it, wakes all ranks, and each throws it from the call it is in, but not before no rank's work
/// touches its buffer any more (on a stream it may still be queued: synchronize before freeing).
class ProcessGroup : NonCopyable {
  public:
    /// `first_error` must outlive the group.
    ProcessGroup(int num_ranks, FirstError& first_error);

    int num_ranks() const { return num_ranks_; }

    /// Waits until all ranks are here. Orders threads only, not streams.
    void barrier(int rank);

    /// Replaces every rank's buffer by the sum over the ranks in their order. With one rank it does
    /// nothing. Each rank sums one part and takes the others from their owners, so it reads 2
    /// (D-1)/D of the buffer's size from other ranks.
    void all_reduce(int rank, Buffer& buffer, gpu::StreamView stream = {});

    /// Replaces every rank's buffer by that of `root`.
    void broadcast(int rank, int root, Buffer& buffer, gpu::StreamView stream = {});

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
