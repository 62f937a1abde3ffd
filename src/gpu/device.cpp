// SPDX-License-Identifier: Apache-2.0
#include "host.hpp"

#include <dflash/core/text.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/device.hpp>

#include <array>
#include <exception>
#include <fmt/format.h>
#include <thread>

namespace dflash::gpu {

namespace {

std::string describe_gpu(int ordinal) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, ordinal));
    return fmt::format("{}, {}, PCI {}",
                       properties.name,
                       format_bytes(static_cast<std::int64_t>(properties.totalGlobalMem)),
                       pci_bus_id(ordinal));
}

}  // namespace

std::string gpu_model(int ordinal) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, ordinal));
    return properties.name;
}

std::string pci_bus_id(int ordinal) {
    std::array<char, 32> text{};
    check(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), ordinal));
    return text.data();
}

CudaInventory cuda_inventory() {
    CudaInventory inventory{.versions = cuda_versions()};
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        inventory.failure =
            fmt::format("{}: {}", cudaGetErrorName(status), cudaGetErrorString(status));
        return inventory;
    }
    for (int ordinal = 0; ordinal < count; ++ordinal) {
        inventory.gpus.push_back(describe_gpu(ordinal));
    }
    return inventory;
}

int cuda_device_count() noexcept {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        return 0;
    }
    return count;
}

std::string describe(const Device& device) {
    return device.is_cuda() ? describe_gpu(device.ordinal) : cpu_name();
}

int num_multiprocessors(int ordinal) {
    int count = 0;
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal));
    return count;
}

DeviceMemory memory_of(const Device& device) {
    if (!device.is_cuda()) {
        return host_memory();
    }
    DeviceMemory memory;
    std::exception_ptr error;
    std::thread thread([&] {
        try {
            std::size_t free_bytes = 0;
            std::size_t total_bytes = 0;
            check(cudaSetDevice(device.ordinal));
            check(cudaMemGetInfo(&free_bytes, &total_bytes));
            memory = {.free_bytes = static_cast<long long>(free_bytes),
                      .total_bytes = static_cast<long long>(total_bytes)};
        } catch (...) {
            error = std::current_exception();
        }
    });
    thread.join();
    if (error) {
        std::rethrow_exception(error);
    }
    return memory;
}

}  // namespace dflash::gpu
