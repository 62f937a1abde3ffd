// SPDX-License-Identifier: Apache-2.0
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/host_memory.hpp>

#include <doctest/doctest.h>

namespace dflash::gpu {

TEST_SUITE("gpu.host_memory") {
    TEST_CASE("memory for a GPU is page-locked") {
        const HostMemory memory(1 << 20, Device{.kind = DeviceKind::Cuda, .name = "cuda:0"});
        CHECK(memory.is_page_locked());
        cudaPointerAttributes attributes{};
        check(cudaPointerGetAttributes(&attributes, memory.bytes().data()));
        CHECK(attributes.type == cudaMemoryTypeHost);
    }
}

}  // namespace dflash::gpu
