// SPDX-License-Identifier: Apache-2.0
// CUDA events: marks in a stream that other streams and the host can wait for. What is shared
// between CPU and CUDA devices uses a Signal instead.
#pragma once

#include <dflash/gpu/stream.hpp>

#include <cuda_runtime_api.h>
#include <memory>

namespace dflash::gpu {

/// Owns an event without timing. Can be moved, not copied: one event, one owner.
class Event {
  public:
    /// On the current device of the calling thread; only streams of that device may record it.
    /// Throws Error{Device}.
    Event();

    /// Marks what is queued on `stream` so far. Asynchronous.
    void record(StreamView stream);

    /// Makes what is queued on `stream` from now on wait for the mark recorded last; any device's
    /// stream. Asynchronous. Without a mark it does nothing.
    void wait(StreamView stream) const;

    /// Whether the mark recorded last was reached; true without one. Throws Error{Device} if the
    /// work before it failed.
    bool reached() const;

    /// Blocks the calling thread until the mark recorded last is reached. Throws Error{Device}.
    void synchronize() const;

  private:
    struct Destroy {
        void operator()(cudaEvent_t handle) const noexcept;
    };

    std::unique_ptr<CUevent_st, Destroy> handle_;
};

}  // namespace dflash::gpu
