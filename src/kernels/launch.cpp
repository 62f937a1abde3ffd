// SPDX-License-Identifier: Apache-2.0
#include "driver_api.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/kernels/launch.hpp>

#include <fmt/format.h>

namespace dflash::kernels {

void launch(const LoadedKernel& kernel,
            Dim3 grid,
            std::span<void* const> arguments,
            gpu::StreamView stream) {
    DFLASH_CHECK(kernel, "a kernel is launched that was not loaded");
    DFLASH_CHECK(stream.is_cuda(), "{} is launched without a CUDA stream", kernel.spec().id());
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) {
        return;
    }
    const KernelSpec& spec = kernel.spec();
    const DriverApi& driver = DriverApi::get();
    const CUresult result = driver.launch_kernel(static_cast<CUfunction>(kernel.function()),
                                                 grid.x,
                                                 grid.y,
                                                 grid.z,
                                                 narrow<unsigned>(spec.threads),
                                                 1,
                                                 1,
                                                 narrow<unsigned>(spec.dynamic_shared_bytes),
                                                 stream.handle(),
                                                 const_cast<void**>(arguments.data()),  // only read
                                                 nullptr);
    if (result != CUDA_SUCCESS) {
        throw Error(
            ErrorKind::Device,
            {.what = fmt::format(
                 "cannot launch {} with {} x {} x {} blocks", spec.id(), grid.x, grid.y, grid.z),
             .where = fmt::format("GPU {}", kernel.ordinal()),
             .cause = driver.describe(result),
             .hint = {}});
    }
}

}  // namespace dflash::kernels
