// SPDX-License-Identifier: Apache-2.0
// A library with NVML's names: a GPU at 0000:1b:00.0 that answers, without graphics processes and
// without a sensor of power, as older drivers and some cards are. What DFLASH_FAKE_NVML_INIT holds
// is what starting it returns.
#include <dflash/gpu/nvml.hpp>

#include <cstdlib>
#include <string_view>

using dflash::gpu::NvmlDevice;
using dflash::gpu::NvmlMemory;
using dflash::gpu::NvmlProcess;
using dflash::gpu::NvmlUtilization;

namespace {

constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
char gpu = 0;

}  // namespace

extern "C" {

int nvmlInit_v2() {
    const char* status = std::getenv("DFLASH_FAKE_NVML_INIT");
    return status == nullptr ? 0 : std::atoi(status);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, NvmlDevice** device) {
    if (std::string_view(id) != "0000:1b:00.0") {
        return kNotFound;
    }
    *device = reinterpret_cast<NvmlDevice*>(&gpu);
    return 0;
}

int nvmlDeviceGetUtilizationRates(NvmlDevice*, NvmlUtilization* utilization) {
    *utilization = {.gpu = 97, .memory = 40};
    return 0;
}

int nvmlDeviceGetMemoryInfo(NvmlDevice*, NvmlMemory* memory) {
    *memory = {.total = 1ULL << 37, .free = 1ULL << 36, .used = 1ULL << 36};
    return 0;
}

int nvmlDeviceGetPowerUsage(NvmlDevice*, unsigned*) {
    return kNotSupported;
}

int nvmlDeviceGetClockInfo(NvmlDevice*, int clock, unsigned* mhz) {
    *mhz = clock == 1 ? 1830 : 5;
    return 0;
}

int nvmlDeviceGetTemperature(NvmlDevice*, int sensor, unsigned* celsius) {
    *celsius = sensor == 0 ? 64 : 5;
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(NvmlDevice*, unsigned* count, NvmlProcess* list) {
    constexpr unsigned kProcesses = 40;
    if (*count < kProcesses) {
        *count = kProcesses;
        return dflash::gpu::kNvmlInsufficientSize;
    }
    *count = kProcesses;
    for (unsigned i = 0; i < kProcesses; ++i) {
        list[i] = {
            .pid = 1000 - i, .used_bytes = i << 20U, .gpu_instance = ~0U, .compute_instance = ~0U};
    }
    return 0;
}
}
