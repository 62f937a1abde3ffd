// SPDX-License-Identifier: Apache-2.0
// The functions of NVML that the program calls, as a table: filled from the driver's library at run
// time, since a machine without a driver has none, and by tests with functions of their own.
//
// Names, signatures and the layout of structures are NVML's ABI: NVIDIA, "NVML API Reference
// Guide", which promises them for libnvidia-ml.so.1.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace dflash::gpu {

struct NvmlDevice;  ///< a handle

/// nvmlUtilization_t, in percent of the driver's last sampling period.
struct NvmlUtilization {
    unsigned gpu;     ///< share in which a kernel ran
    unsigned memory;  ///< share in which memory was read or written
};

/// nvmlMemory_t, in bytes; `used` includes what the driver keeps for itself.
struct NvmlMemory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
};

/// nvmlProcessInfo_v2_t, as the functions of suffix _v3 fill it.
struct NvmlProcess {
    unsigned pid;
    unsigned long long used_bytes;  ///< all bits set: not known
    unsigned gpu_instance;
    unsigned compute_instance;
};

static_assert(sizeof(NvmlMemory) == 24 && sizeof(NvmlProcess) == 24);

/// Values of nvmlReturn_t that are told apart.
constexpr int kNvmlSuccess = 0;
constexpr int kNvmlInsufficientSize = 7;

/// The number of the SM clock in nvmlClockType_t, of the GPU's core in nvmlTemperatureSensors_t.
constexpr int kNvmlSmClock = 1;
constexpr int kNvmlCoreTemperature = 0;

/// Functions that a library lacks are null, and what they would say is not known.
struct NvmlFunctions {
    using Number = int (*)(NvmlDevice*, unsigned*);
    using NumberOf = int (*)(NvmlDevice*, int, unsigned*);
    using Processes = int (*)(NvmlDevice*, unsigned*, NvmlProcess*);

    int (*init)() = nullptr;
    int (*handle_by_pci_bus_id)(const char*, NvmlDevice**) = nullptr;
    int (*utilization)(NvmlDevice*, NvmlUtilization*) = nullptr;
    int (*memory)(NvmlDevice*, NvmlMemory*) = nullptr;
    Number power_mw = nullptr;
    NumberOf clock_mhz = nullptr;
    NumberOf temperature_c = nullptr;
    Processes compute_processes = nullptr;
    Processes graphics_processes = nullptr;
};

/// Opens the library and initializes it; null if it is not there, lacks what all else needs, or
/// says no (a driver that was replaced under a running system). It stays open until the process
/// ends. Does not throw for the library's sake.
std::shared_ptr<const NvmlFunctions> load_nvml(const std::string& library = "libnvidia-ml.so.1");

}  // namespace dflash::gpu
