// SPDX-License-Identifier: Apache-2.0
// Loading of kernels onto devices. An interface, so that the compile barrier runs without a GPU in
// tests; a run uses the CUDA driver.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/kernels/architecture.hpp>
#include <dflash/kernels/kernel_builder.hpp>

#include <cstdint>
#include <memory>

namespace dflash::kernels {

class KernelDriver : NonCopyable {
  public:
    virtual ~KernelDriver() = default;

    /// The target of a GPU. Makes no context. Any thread. Throws Error{Device}, or
    /// KernelError{WrongArchitecture} if it is too old.
    virtual Architecture architecture(const gpu::Device& device) const = 0;

    /// Puts the kernel on the device completely, so that no launch loads anything, and returns its
    /// CUfunction. On the device's worker. Valid as long as this object. Throws
    /// KernelError{WrongArchitecture, SharedMemory, Load}.
    virtual void* load(const BuiltKernel& kernel, const gpu::Device& device) = 0;

    /// Calls of load() and of the driver's loading functions behind it, so far.
    virtual std::int64_t num_loads() const = 0;
};

/// libcuda, through the runtime's entry points: the program starts without it. Throws Error{Device}
/// if there is no driver or it lacks what is needed (CUDA 12.4).
std::unique_ptr<KernelDriver> make_cuda_driver();

}  // namespace dflash::kernels
