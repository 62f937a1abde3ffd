// SPDX-License-Identifier: Apache-2.0
// What the operating system says about the CPU.
#pragma once

#include <dflash/gpu/device.hpp>

#include <string>

namespace dflash::gpu {

/// The processor's name as the kernel gives it, or "CPU".
std::string cpu_name();

/// Memory that could be had without swapping, and the total; what the container allows (cgroup v2)
/// where that is less.
DeviceMemory host_memory();

}  // namespace dflash::gpu
