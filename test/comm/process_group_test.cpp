// SPDX-License-Identifier: Apache-2.0
#include <dflash/comm/in_process_group.hpp>
#include <dflash/comm/nccl_group.hpp>

#include <doctest/doctest.h>

namespace dflash::comm {
namespace {

using namespace std::chrono_literals;

std::vector<gpu::Device> gpus(const std::vector<int>& ordinals) {
    std::vector<gpu::Device> devices;
    for (const int ordinal : ordinals) {
        devices.push_back({.kind = gpu::DeviceKind::Cuda, .ordinal = ordinal});
    }
    return devices;
}

bool is_in_process(const std::vector<gpu::Device>& devices) {
    FirstError first_error;
    const auto group = make_process_group(devices, first_error, 1s);
    CHECK(group->num_ranks() == static_cast<int>(devices.size()));
    return dynamic_cast<InProcessGroup*>(group.get()) != nullptr;
}

TEST_SUITE("comm.process_group") {
    TEST_CASE("what NCCL cannot serve is done in-process: CPU devices, and GPUs named twice") {
        CHECK(is_in_process(gpu::parse_devices("cpu:3")));
        CHECK(is_in_process(gpus({0, 0, 0})));
        CHECK(is_in_process(gpus({0, 1, 0})));
        CHECK(is_in_process(gpus({2})));
    }

    TEST_CASE("the NCCL that is loaded is that of the build") {
        CHECK(nccl_loaded_version() == nccl_build_version());
    }
}

}  // namespace
}  // namespace dflash::comm
