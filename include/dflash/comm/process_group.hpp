// SPDX-License-Identifier: Apache-2.0
// Collectives between the drafters of this process, one thread each.
#pragma once

#include <dflash/comm/buffer.hpp>
#include <dflash/comm/collective_board.hpp>
#include <dflash/core/first_error.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/gpu/stream.hpp>

#include <chrono>
#include <memory>
#include <vector>

namespace dflash::comm {

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
    virtual ~ProcessGroup() = default;

    virtual int num_ranks() const = 0;

    /// To be called once by every rank on its own worker, by all at the same time, before the first
    /// collective: makes what the collectives need. Returns when all ranks have it.
    virtual void join(int rank) = 0;

    /// Waits until all ranks are here. Orders threads only, not streams.
    virtual void barrier(int rank) = 0;

    /// Replaces every rank's buffer by the sum over the ranks, in fp32. The same bits on every
    /// rank, and every time. With one rank it does nothing.
    virtual void all_reduce(int rank, Buffer& buffer, gpu::StreamView stream = {}) = 0;

    /// Replaces every rank's buffer by that of `root`.
    virtual void broadcast(int rank, int root, Buffer& buffer, gpu::StreamView stream = {}) = 0;

    /// Who waits for whom.
    virtual std::shared_ptr<const CollectiveBoard> board() const = 0;
};

/// A rank on each of `devices`: over NCCL where each is a GPU of its own, otherwise in-process. A
/// collective that a rank does not come to within `timeout` ends the run. `first_error` must
/// outlive the group, and the group the tasks of its workers.
std::unique_ptr<ProcessGroup> make_process_group(const std::vector<gpu::Device>& devices,
                                                 FirstError& first_error,
                                                 std::chrono::milliseconds timeout);

}  // namespace dflash::comm
