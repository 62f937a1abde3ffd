// SPDX-License-Identifier: Apache-2.0
// Which cores a worker's thread runs on.
#pragma once

#include <dflash/gpu/device.hpp>

#include <string>

namespace dflash::gpu {

/// Binds the calling thread: for CPU device i to the i-th of the cores that the process may use,
/// for a GPU to those cores that are nearest to it. Returns the processing units, as in "0-15";
/// empty if the thread was left as it was: fewer cores than devices, or a system that does not say
/// where things are. Never throws for the system's sake: pinning only saves time.
std::string pin_current_thread(const Device& device);

}  // namespace dflash::gpu
