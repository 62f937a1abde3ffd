// SPDX-License-Identifier: Apache-2.0
// Launches of kernels that the compile barrier has loaded.
#pragma once

#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/kernel_spec.hpp>

#include <cstdint>
#include <functional>
#include <span>

namespace dflash::kernels {

/// Blocks of a grid; x varies fastest.
struct Dim3 {
    std::uint32_t x = 1;
    std::uint32_t y = 1;
    std::uint32_t z = 1;
};

/// A kernel on one device: a view that stays valid as long as the CompileBarrier (or the
/// LoadedKernels) it came from. Copies are cheap.
class LoadedKernel {
  public:
    LoadedKernel() = default;  ///< none; may not be launched

    /// `function` is a CUfunction of the device `ordinal`, in its primary context.
    LoadedKernel(const KernelSpec& spec, void* function, int ordinal)
        : spec_(&spec), function_(function), ordinal_(ordinal) {}

    const KernelSpec& spec() const { return *spec_; }

    void* function() const { return function_; }  ///< CUfunction

    int ordinal() const { return ordinal_; }  ///< CUDA ordinal of the device

    explicit operator bool() const { return function_ != nullptr; }

  private:
    const KernelSpec* spec_ = nullptr;
    void* function_ = nullptr;
    int ordinal_ = -1;
};

/// Gives a kernel as it was loaded on one device. What it throws is passed on by those who ask.
using FindKernel = std::function<LoadedKernel(const KernelSpec&)>;

/// Queues `kernel` on `stream` with spec().threads threads a block and spec().dynamic_shared_bytes
/// of shared memory; asynchronous. `arguments` holds the address of each parameter in the order of
/// the entry point; the parameters are copied before the call returns. To be called by the worker
/// of the kernel's device; `stream` must be a CUDA stream of that device. A grid without blocks
/// launches nothing. Throws Error{Device} with the kernel's id if the driver refuses; faults of the
/// kernel itself appear where the stream is synchronised.
void launch(const LoadedKernel& kernel,
            Dim3 grid,
            std::span<void* const> arguments,
            gpu::StreamView stream);

}  // namespace dflash::kernels
