// SPDX-License-Identifier: Apache-2.0
// CUDA's libraries (CUlibrary, since 12.0) belong to no context: one load of a binary serves all
// GPUs it runs on. A function (CUfunction) belongs to the context that is current when it is asked
// for, so each worker asks for its own.
#include "driver_api.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/kernels/kernel_driver.hpp>
#include <dflash/kernels/kernel_error.hpp>

#include <atomic>
#include <fmt/format.h>
#include <map>
#include <mutex>

namespace dflash::kernels {
namespace {

int attribute(cudaDeviceAttr name, const gpu::Device& device) {
    int value = 0;
    gpu::check(cudaDeviceGetAttribute(&value, name, device.ordinal));
    return value;
}

KernelFault fault_of(CUresult result) {
    switch (result) {
        case CUDA_ERROR_NO_BINARY_FOR_GPU:
        case CUDA_ERROR_INVALID_IMAGE:
        case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
            return KernelFault::WrongArchitecture;
        default:
            return KernelFault::Load;
    }
}

class CudaDriver final : public KernelDriver {
  public:
    CudaDriver() : api_(DriverApi::get()) {}

    ~CudaDriver() override {
        for (const auto& [digest, library] : libraries_) {
            const CUresult result = api_.library_unload(library);
            if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED) {
                log_warning("kernels could not be unloaded: {}", api_.describe(result));
            }
        }
    }

    Architecture architecture(const gpu::Device& device) const override {
        return Architecture::of_capability(attribute(cudaDevAttrComputeCapabilityMajor, device),
                                           attribute(cudaDevAttrComputeCapabilityMinor, device));
    }

    void* load(const BuiltKernel& kernel, const gpu::Device& device) override;

    std::int64_t num_loads() const override { return num_loads_.load(std::memory_order_relaxed); }

  private:
    void check(CUresult result, const BuiltKernel& kernel, const gpu::Device& device) const;
    CUlibrary library(const BuiltKernel& kernel, const gpu::Device& device);

    const DriverApi& api_;
    std::atomic<std::int64_t> num_loads_ = 0;
    std::mutex mutex_;                            // guards: libraries_
    std::map<std::string, CUlibrary> libraries_;  // by digest; one serves all devices
};

void CudaDriver::check(CUresult result,
                       const BuiltKernel& kernel,
                       const gpu::Device& device) const {
    if (result != CUDA_SUCCESS) {
        throw KernelError(
            fault_of(result),
            {.what = fmt::format("the driver does not take {} for {}",
                                 kernel.request.spec.id(),
                                 kernel.request.architecture.name()),
             .where = fmt::format(
                 "{}, from {} {}", gpu::describe(device), to_string(kernel.origin), kernel.source),
             .cause = api_.describe(result),
             .hint = fmt::format("{}, and see whether the driver is as new as the CUDA compiler",
                                 kernel.origin == KernelOrigin::Compiled
                                     ? "Clear the folder of kernels (dflash kernels --clear with "
                                       "the run's cache.dir)"
                                     : "Delete " + kernel.source)});
    }
}

CUlibrary CudaDriver::library(const BuiltKernel& kernel, const gpu::Device& device) {
    const std::lock_guard lock(mutex_);
    const auto found = libraries_.find(kernel.digest);
    if (found != libraries_.end()) {
        return found->second;
    }
    CUlibrary library = nullptr;
    num_loads_.fetch_add(1, std::memory_order_relaxed);
    // The driver copies the binary, so that it may go.
    check(api_.library_load_data(
              &library, kernel.binary.cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
          kernel,
          device);
    libraries_.emplace(kernel.digest, library);
    return library;
}

void* CudaDriver::load(const BuiltKernel& kernel, const gpu::Device& device) {
    const KernelSpec& spec = kernel.request.spec;
    const Architecture own = architecture(device);
    if (!kernel.request.architecture.runs_on(own.major, own.minor)) {
        throw KernelError(KernelFault::WrongArchitecture,
                          {.what = fmt::format("{} is built for another GPU: got {}, expected {}",
                                               spec.id(),
                                               kernel.request.architecture.name(),
                                               own.name()),
                           .where = gpu::describe(device),
                           .cause = {},
                           .hint = {}});
    }
    // The limit that the driver would enforce, in words: it answers "invalid argument".
    const int shared = spec.dynamic_shared_bytes + kernel.binary.resources.static_shared_bytes;
    const int available = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (shared > available) {
        throw KernelError(
            KernelFault::SharedMemory,
            {.what = fmt::format("{} needs {} of shared memory per block, and the GPU has {}",
                                 spec.id(),
                                 format_bytes(shared),
                                 format_bytes(available)),
             .where = gpu::describe(device),
             .cause = {},
             .hint = {}});
    }
    CUkernel handle = nullptr;
    check(api_.library_get_kernel(&handle, library(kernel, device), spec.entry.c_str()),
          kernel,
          device);
    // More than 48 KiB has to be asked for, on each device.
    CUdevice ordinal = 0;
    check(api_.device_get(&ordinal, device.ordinal), kernel, device);
    check(api_.kernel_set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                    spec.dynamic_shared_bytes,
                                    handle,
                                    ordinal),
          kernel,
          device);
    // Loading is lazy: without this the first launch would load, in the middle of a step.
    CUfunction function = nullptr;
    num_loads_.fetch_add(1, std::memory_order_relaxed);
    check(api_.kernel_get_function(&function, handle), kernel, device);
    check(api_.func_load(function), kernel, device);
    return function;
}

}  // namespace

std::unique_ptr<KernelDriver> make_cuda_driver() {
    return std::make_unique<CudaDriver>();
}

}  // namespace dflash::kernels
