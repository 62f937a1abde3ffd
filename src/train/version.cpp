// SPDX-License-Identifier: Apache-2.0
#include <dflash/comm/nccl_group.hpp>
#include <dflash/gpu/versions.hpp>
#include <dflash/train/version.hpp>

#include <string>
#include <torch/version.h>

namespace dflash::train {

io::Json library_versions() {
    const gpu::CudaVersions cuda = gpu::cuda_versions();
    return io::Json::object(
        {{"torch", io::Json::string(TORCH_VERSION)},
         {"nccl", io::Json::string(comm::nccl_loaded_version())},
         {"cuda_runtime", io::Json::string(gpu::format_cuda_version(cuda.loaded))},
         {"cuda_driver",
          io::Json::string(cuda.driver == 0 ? "none" : gpu::format_cuda_version(cuda.driver))}});
}

}  // namespace dflash::train
