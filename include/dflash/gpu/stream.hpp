// SPDX-License-Identifier: Apache-2.0
// CUDA streams: an owner, and the view that is passed around. On CPU devices there are no streams:
// their view is the empty one, and everything that takes a view does nothing with it.
#pragma once

#include <cuda_runtime_api.h>
#include <memory>

namespace dflash::gpu {

/// A stream that somebody else owns, on the current device of the calling thread; or none.
class StreamView {
  public:
    /// No stream: the work is done when the call returns (CPU devices).
    StreamView() = default;

    /// A null handle is CUDA's default stream, which is a stream.
    explicit StreamView(cudaStream_t handle) : handle_(handle), is_cuda_(true) {}

    bool is_cuda() const { return is_cuda_; }

    cudaStream_t handle() const { return handle_; }

    /// Blocks the calling thread until the work queued so far is done. Throws Error{Device}.
    void synchronize() const;

    /// Whether the work queued so far is done. Throws Error{Device} if it failed.
    bool done() const;

  private:
    cudaStream_t handle_ = nullptr;
    bool is_cuda_ = false;
};

/// Owns a stream that does not wait for the default stream. One stream, one owner: it can be moved,
/// not copied. Destroying it returns at once; CUDA frees it when its work is done.
class Stream {
  public:
    /// On the current device of the calling thread (a worker). Throws Error{Device}.
    Stream();

    StreamView view() const { return StreamView(handle_.get()); }

  private:
    struct Destroy {
        void operator()(cudaStream_t handle) const noexcept;
    };

    std::unique_ptr<CUstream_st, Destroy> handle_;
};

}  // namespace dflash::gpu
