// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/host_memory.hpp>

#include <cstdlib>
#include <cstring>
#include <fmt/format.h>

namespace dflash::gpu {
namespace {

// A page, and what vector instructions like; sizes are rounded up to it.
constexpr std::size_t kAlignment = 4096;

}  // namespace

HostMemory::HostMemory(std::size_t size, const Device& device) {
    void* address = nullptr;
    if (device.is_cuda()) {
        // Portable: page-locked for all GPUs, whichever of them is current when it is freed.
        const cudaError_t status = cudaHostAlloc(&address, size, cudaHostAllocPortable);
        if (status == cudaSuccess) {
            page_locked_ = true;
        } else {
            reason_ = fmt::format("{}: {}", cudaGetErrorName(status), cudaGetErrorString(status));
            static_cast<void>(cudaGetLastError());  // so that nobody else trips over it
            address = nullptr;
        }
    }
    if (address == nullptr) {
        address = std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
    }
    if (address == nullptr) {
        throw Error(ErrorKind::Device,
                    {.what = fmt::format("there are no {} of host memory in one piece",
                                         format_bytes(static_cast<long long>(size))),
                     .where = device.name,
                     .cause = reason_,
                     .hint = "See which other process uses the machine's memory"});
    }
    std::memset(address, 0, size);
    bytes_ = {static_cast<std::byte*>(address), size};
}

HostMemory::~HostMemory() {
    if (page_locked_) {
        report(cudaFreeHost(bytes_.data()));
    } else {
        std::free(bytes_.data());
    }
}

}  // namespace dflash::gpu
