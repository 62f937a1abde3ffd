// SPDX-License-Identifier: Apache-2.0
// Whether the GPUs of a run are free and its libraries the right ones, before anything is loaded.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/gpu/device.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

/// Memory that other processes may hold of a GPU: a desktop or a monitor has some, a job far more.
inline constexpr Bytes kForeignMemory = Bytes{1} << 30;

/// A process with a context on a GPU.
struct ForeignProcess {
    std::int64_t pid = 0;
    std::string name;             ///< its command; empty if that is not to be seen from here
    std::optional<Bytes> memory;  ///< nothing where the driver does not tell it
};

/// What a GPU holds before the run has touched it.
struct GpuUse {
    std::string device;  ///< as --gpus names it
    std::string what;    ///< gpu::describe()
    Bytes used = 0;
    Bytes total = 0;
    std::vector<ForeignProcess> processes;
};

/// Throws Error{Device} naming each GPU with more than kForeignMemory in use by other processes,
/// with their ids and names. Where only the sum is known (no NVML, or the processes live in another
/// container) it is a warning in the log: memory alone does not say whose it is.
void check_gpu_use(const std::vector<GpuUse>& gpus);

/// Reads the GPUs of a list, each once. Makes no CUDA context where NVML answers.
std::vector<GpuUse> read_gpu_use(const std::vector<gpu::Device>& devices);

/// Both checks, of libraries and of GPUs in use; nothing on CPU devices. Throws Error{Device}.
void check_gpus(const std::vector<gpu::Device>& devices);

}  // namespace dflash::train
