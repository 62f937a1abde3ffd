// SPDX-License-Identifier: Apache-2.0
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/peer_copy.hpp>

namespace dflash::gpu {

bool enable_peer_access(int ordinal) {
    int current = 0;
    check(cudaGetDevice(&current));
    if (current == ordinal) {
        return true;
    }
    int possible = 0;
    check(cudaDeviceCanAccessPeer(&possible, current, ordinal));
    if (possible == 0) {
        return false;
    }
    const cudaError_t status = cudaDeviceEnablePeerAccess(ordinal, /*flags=*/0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
        static_cast<void>(cudaGetLastError());  // LibTorch may have been first
        return true;
    }
    check(status);
    return true;
}

void copy_async(void* to, const void* from, Bytes bytes, StreamView stream) {
    check(cudaMemcpyAsync(
        to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream.handle()));
}

}  // namespace dflash::gpu
