// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/log.hpp>
#include <dflash/gpu/nvml.hpp>

#include <dlfcn.h>

namespace dflash::gpu {
namespace {

template <class Function>
void find(void* library, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(::dlsym(library, name));
}

}  // namespace

std::shared_ptr<const NvmlFunctions> load_nvml(const std::string& library) {
    void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char* reason = ::dlerror();
        log_debug("no figures of GPUs: {}", reason != nullptr ? reason : library.c_str());
        return nullptr;
    }
    auto nvml = std::make_shared<NvmlFunctions>();
    find(handle, "nvmlInit_v2", nvml->init);
    find(handle, "nvmlDeviceGetHandleByPciBusId_v2", nvml->handle_by_pci_bus_id);
    find(handle, "nvmlDeviceGetUtilizationRates", nvml->utilization);
    find(handle, "nvmlDeviceGetMemoryInfo", nvml->memory);
    find(handle, "nvmlDeviceGetPowerUsage", nvml->power_mw);
    find(handle, "nvmlDeviceGetClockInfo", nvml->clock_mhz);
    find(handle, "nvmlDeviceGetTemperature", nvml->temperature_c);
    find(handle, "nvmlDeviceGetComputeRunningProcesses_v3", nvml->compute_processes);
    find(handle, "nvmlDeviceGetGraphicsRunningProcesses_v3", nvml->graphics_processes);
    if (nvml->init == nullptr || nvml->handle_by_pci_bus_id == nullptr) {
        log_debug("no figures of GPUs: {} is no NVML", library);
        return nullptr;
    }
    if (const int status = nvml->init(); status != kNvmlSuccess) {
        log_debug("no figures of GPUs: {} does not start (NVML error {})", library, status);
        return nullptr;
    }
    return nvml;
}

}  // namespace dflash::gpu
