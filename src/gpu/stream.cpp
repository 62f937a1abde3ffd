// SPDX-License-Identifier: Apache-2.0
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/stream.hpp>

namespace dflash::gpu {

void StreamView::synchronize() const {
    if (is_cuda_) {
        check(cudaStreamSynchronize(handle_));
    }
}

bool StreamView::done() const {
    if (!is_cuda_) {
        return true;
    }
    const cudaError_t status = cudaStreamQuery(handle_);
    if (status == cudaErrorNotReady) {
        return false;
    }
    check(status);
    return true;
}

Stream::Stream() {
    cudaStream_t handle = nullptr;
    check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking));
    handle_.reset(handle);
}

void Stream::Destroy::operator()(cudaStream_t handle) const noexcept {
    report(cudaStreamDestroy(handle));
}

}  // namespace dflash::gpu
