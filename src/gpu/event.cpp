// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/event.hpp>

namespace dflash::gpu {

Event::Event() {
    cudaEvent_t handle = nullptr;
    check(cudaEventCreateWithFlags(&handle, cudaEventDisableTiming));
    handle_.reset(handle);
}

void Event::record(StreamView stream) {
    DFLASH_CHECK(stream.is_cuda(), "an event needs a stream");
    check(cudaEventRecord(handle_.get(), stream.handle()));
}

void Event::wait(StreamView stream) const {
    DFLASH_CHECK(stream.is_cuda(), "an event needs a stream");
    check(cudaStreamWaitEvent(stream.handle(), handle_.get(), cudaEventWaitDefault));
}

bool Event::reached() const {
    const cudaError_t status = cudaEventQuery(handle_.get());
    if (status == cudaErrorNotReady) {
        return false;
    }
    check(status);
    return true;
}

void Event::synchronize() const {
    check(cudaEventSynchronize(handle_.get()));
}

void Event::Destroy::operator()(cudaEvent_t handle) const noexcept {
    report(cudaEventDestroy(handle));
}

}  // namespace dflash::gpu
