// SPDX-License-Identifier: Apache-2.0
#include <dflash/gpu/sensors.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <doctest/doctest.h>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>

namespace dflash::gpu {
namespace {

using namespace std::chrono_literals;

/// Two GPUs, at 0000:01:00.0 and 0000:02:00.0. Counts readings; may hang like a lost GPU.
struct FakeDriver {
    std::atomic<int> readings = 0;
    std::atomic<bool> hangs = false;
};

FakeDriver& driver() {
    static FakeDriver fake;
    return fake;
}

NvmlFunctions fake_functions() {
    driver().readings = 0;
    driver().hangs = false;
    NvmlFunctions functions;
    functions.init = [] { return kNvmlSuccess; };
    functions.handle_by_pci_bus_id = [](const char* id, NvmlDevice** device) {
        static char gpus[3];
        if (std::string_view(id) != "0000:01:00.0" && std::string_view(id) != "0000:02:00.0") {
            return 6;
        }
        *device = reinterpret_cast<NvmlDevice*>(&gpus[id[6] - '0']);
        return kNvmlSuccess;
    };
    functions.utilization = [](NvmlDevice*, NvmlUtilization* utilization) {
        ++driver().readings;
        while (driver().hangs) {
            std::this_thread::sleep_for(1ms);
        }
        utilization->gpu = 50;
        return kNvmlSuccess;
    };
    functions.power_mw = [](NvmlDevice*, unsigned* milliwatts) {
        *milliwatts = 612400;
        return kNvmlSuccess;
    };
    functions.compute_processes = [](NvmlDevice*, unsigned* count, NvmlProcess* list) {
        list[0] = {.pid = 7, .used_bytes = 1000, .gpu_instance = 0, .compute_instance = 0};
        list[1] = {.pid = 5, .used_bytes = ~0ULL, .gpu_instance = 0, .compute_instance = 0};
        *count = 2;
        return kNvmlSuccess;
    };
    functions.graphics_processes = [](NvmlDevice*, unsigned* count, NvmlProcess* list) {
        list[0] = {.pid = 7, .used_bytes = 1200, .gpu_instance = 0, .compute_instance = 0};
        *count = 1;
        return kNvmlSuccess;
    };
    return functions;
}

GpuSensors fake_sensors() {
    return GpuSensors(std::make_shared<NvmlFunctions>(fake_functions()));
}

bool soon(const std::function<bool()>& condition) {
    for (int i = 0; i < 5000 && !condition(); ++i) {
        std::this_thread::sleep_for(1ms);
    }
    return condition();
}

}  // namespace

TEST_SUITE("gpu.sensors") {
    TEST_CASE("without a library nothing is known, and nothing is an error") {
        CHECK(load_nvml("libdflash-no-such-library.so.1") == nullptr);
        const GpuSensors sensors(nullptr);
        CHECK_FALSE(sensors.available());
        CHECK_FALSE(sensors.read("0000:01:00.0").use);
        CHECK(sensors.processes("0000:01:00.0").empty());
    }

    TEST_CASE("a library that is no NVML, and one that does not start, are as good as none") {
        CHECK(load_nvml("libm.so.6") == nullptr);
        ::setenv("DFLASH_FAKE_NVML_INIT", "18", 1);  // NVML_ERROR_LIB_RM_VERSION_MISMATCH
        CHECK(load_nvml(DFLASH_FAKE_NVML) == nullptr);
        ::unsetenv("DFLASH_FAKE_NVML_INIT");
    }

    TEST_CASE("figures come from the library; those that it lacks are empty") {
        const GpuSensors sensors(load_nvml(DFLASH_FAKE_NVML));
        REQUIRE(sensors.available());
        const GpuFigures figures = sensors.read("0000:1b:00.0");
        CHECK(figures.use == 0.97);
        CHECK(figures.memory_used_bytes == 1LL << 36);
        CHECK(figures.memory_total_bytes == 1LL << 37);
        CHECK_FALSE(figures.power_w);
        CHECK(figures.sm_clock_mhz == 1830);
        CHECK(figures.temperature_c == 64);
        CHECK_FALSE(sensors.read("0000:1c:00.0").use);
    }

    TEST_CASE("all processes of a GPU are found, however many there are") {
        const GpuSensors sensors(load_nvml(DFLASH_FAKE_NVML));
        const std::vector<GpuProcess> processes = sensors.processes("0000:1b:00.0");
        REQUIRE(processes.size() == 40);
        CHECK(processes.front().pid == 961);
        CHECK(processes.front().memory_bytes == 39 << 20);
        CHECK(processes.back().pid == 1000);
        CHECK(processes.back().memory_bytes == 0);
    }

    TEST_CASE("a process that computes and draws stands once, and unknown memory is empty") {
        const GpuSensors sensors = fake_sensors();
        const std::vector<GpuProcess> processes = sensors.processes("0000:01:00.0");
        REQUIRE(processes.size() == 2);
        CHECK(processes[0].pid == 5);
        CHECK_FALSE(processes[0].memory_bytes);
        CHECK(processes[1].pid == 7);
        CHECK(processes[1].memory_bytes == 1200);
        CHECK(sensors.processes("0000:03:00.0").empty());
    }

    TEST_CASE("figures of a list stand by position, and a GPU listed twice is asked once a round") {
        SensorSampler sampler(
            {"0000:01:00.0", "", "0000:01:00.0", "0000:09:00.0"}, fake_sensors(), 1h);
        REQUIRE(soon([&] { return sampler.latest()[0].use.has_value(); }));
        const std::vector<GpuFigures> figures = sampler.latest();
        REQUIRE(figures.size() == 4);
        CHECK(figures[0].power_w == doctest::Approx(612.4));
        CHECK_FALSE(figures[1].use);
        CHECK(figures[2].use == 0.5);
        CHECK_FALSE(figures[3].use);
        CHECK(driver().readings == 1);
    }

    TEST_CASE("a driver that hangs holds up neither readers nor the end, and is no news") {
        auto sampler = std::make_unique<SensorSampler>(
            std::vector<std::string>{"0000:01:00.0"}, fake_sensors(), 2ms);
        REQUIRE(soon([&] { return sampler->latest()[0].use.has_value(); }));
        driver().hangs = true;
        CHECK(soon([&] { return !sampler->latest()[0].use.has_value(); }));
        const auto start = std::chrono::steady_clock::now();
        sampler.reset();
        CHECK(std::chrono::steady_clock::now() - start < 5s);
        driver().hangs = false;  // lets the thread that was left behind end
    }

    TEST_CASE("the process has used processor time and memory") {
        const ProcessFigures before = read_process_figures();
        CHECK(before.resident_bytes > 1 << 20);
        const auto until = std::chrono::steady_clock::now() + 50ms;
        while (std::chrono::steady_clock::now() < until) {
        }
        CHECK(read_process_figures().cpu_s > before.cpu_s + 0.005);
    }
}

}  // namespace dflash::gpu
