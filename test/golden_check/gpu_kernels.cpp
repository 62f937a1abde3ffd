// SPDX-License-Identifier: Apache-2.0
#include "gpu_kernels.hpp"

namespace dflash::golden {

GpuKernels::GpuKernels(const gpu::Device& device)
    : device_(device),
      builder_(kernels::SourceSet::embedded(),
               kernels::cache_options_in(kernels::default_cache_root())),
      driver_(kernels::make_cuda_driver()) {}

kernels::LoadedKernel GpuKernels::find(const kernels::KernelSpec& spec) {
    built_.push_back(builder_.build({{spec, architecture()}}).front());
    const kernels::BuiltKernel& kernel = built_.back();
    return {kernel.request.spec, driver_->load(kernel, device_), device_.ordinal};
}

}  // namespace dflash::golden
