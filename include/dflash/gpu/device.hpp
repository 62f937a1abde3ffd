// SPDX-License-Identifier: Apache-2.0
// The logical devices of a run: CUDA devices, the same CUDA device several times, or slices of the
// CPU. All run the same code, one worker each.
#pragma once

#include <dflash/gpu/versions.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace dflash::gpu {

enum class DeviceKind { Cpu, Cuda };

struct Device {
    DeviceKind kind = DeviceKind::Cpu;
    int position = 0;  ///< place in the --gpus list, from 0: the identity of a logical device
    int ordinal =
        0;  ///< CUDA ordinal (after CUDA_VISIBLE_DEVICES); for CPU devices the number of the slice

    /// "cuda:0", "cpu:1"; with the position where the same GPU is listed several times: "cuda:0/2".
    std::string name{};

    int list_size = 1;  ///< length of the --gpus list: whether there is a core for each worker

    bool is_cuda() const { return kind == DeviceKind::Cuda; }
};

struct DeviceMemory {
    long long free_bytes = 0;
    long long total_bytes = 0;
};

/// What the CUDA runtime says about this machine.
struct CudaInventory {
    CudaVersions versions{};
    std::vector<std::string> gpus{};  ///< of each visible GPU by ordinal, as describe() puts it
    std::string failure{};            ///< what the runtime said, where it found none
};

/// Asks the CUDA runtime; makes no context. Without a driver there are simply no GPUs. Throws
/// Error{Device} if a GPU that is counted does not answer.
CudaInventory cuda_inventory();

/// Reads `--gpus`: "0-7", "0,2,5-7", "all", "0,0,0", "cpu:N". Throws Error{Config} for a malformed
/// list (got, expected), Error{Device} for a GPU that is not there (naming those that are) or a
/// driver that is missing or too old.
std::vector<Device> parse_devices(std::string_view list);

/// The same for a machine with that inventory.
std::vector<Device> parse_devices(std::string_view list, const CudaInventory& inventory);

/// Number of CUDA devices; 0 without a driver.
int cuda_device_count() noexcept;

/// "NVIDIA H200, 139.8 GiB, PCI 0000:1b:00.0" or the CPU's name.
std::string describe(const Device& device);

/// "NVIDIA H200": the model of the GPU with that CUDA ordinal. Makes no context. Throws
/// Error{Device}.
std::string gpu_model(int ordinal);

/// "0000:1b:00.0", by which other libraries know the GPU with that CUDA ordinal. Makes no context.
/// Throws Error{Device}.
std::string pci_bus_id(int ordinal);

/// Multiprocessors of the GPU with that CUDA ordinal. Throws Error{Device}.
int num_multiprocessors(int ordinal);

/// Free and total memory: of the GPU (makes its context, in a thread of its own, so that the
/// caller's current device stays as it is), or of the machine or container for CPU devices.
/// Throws Error{Device}.
DeviceMemory memory_of(const Device& device);

}  // namespace dflash::gpu
