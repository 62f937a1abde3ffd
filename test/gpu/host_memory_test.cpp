// SPDX-License-Identifier: Apache-2.0
#include <dflash/gpu/host_memory.hpp>

#include <algorithm>
#include <doctest/doctest.h>

namespace dflash::gpu {

TEST_SUITE("gpu.host_memory") {
    TEST_CASE("memory for a CPU device is plain and filled with zeros") {
        const HostMemory memory(100'000, Device{.kind = DeviceKind::Cpu, .name = "cpu:0"});
        CHECK(memory.bytes().size() == 100'000);
        CHECK_FALSE(memory.is_page_locked());
        CHECK(memory.reason().empty());
        CHECK(std::all_of(memory.bytes().begin(), memory.bytes().end(), [](std::byte b) {
            return b == std::byte{0};
        }));
        std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{7});
    }

    TEST_CASE("memory that cannot be page-locked is plain, and says why") {
        if (cuda_device_count() > 0) {
            return;  // the test of the other case is in host_memory_gpu_test.cpp
        }
        const HostMemory memory(5000, Device{.kind = DeviceKind::Cuda, .name = "cuda:0"});
        CHECK(memory.bytes().size() == 5000);
        CHECK_FALSE(memory.is_page_locked());
        CHECK(memory.reason().find("cudaError") == 0);
    }
}

}  // namespace dflash::gpu
