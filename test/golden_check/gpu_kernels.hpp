// SPDX-License-Identifier: Apache-2.0
// Kernels on one GPU for comparisons, compiled when they are first asked for.
#pragma once

#include <dflash/kernels/kernel_builder.hpp>
#include <dflash/kernels/kernel_driver.hpp>
#include <dflash/kernels/launch.hpp>

#include <list>
#include <memory>

namespace dflash::golden {

/// Used by the thread whose current device it is.
class GpuKernels {
  public:
    explicit GpuKernels(const gpu::Device& device);

    kernels::Architecture architecture() const { return driver_->architecture(device_); }

    /// From the cache, from a pack, or compiled; loaded. Throws KernelError.
    kernels::LoadedKernel find(const kernels::KernelSpec& spec);

  private:
    gpu::Device device_;
    kernels::KernelBuilder builder_;
    std::unique_ptr<kernels::KernelDriver> driver_;
    std::list<kernels::BuiltKernel> built_;  // what is loaded refers to it
};

}  // namespace dflash::golden
