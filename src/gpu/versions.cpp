// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/gpu/versions.hpp>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

namespace dflash::gpu {

std::string format_cuda_version(int version) {
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

CudaVersions cuda_versions() noexcept {
    CudaVersions versions{.built = CUDART_VERSION};
    if (cudaRuntimeGetVersion(&versions.loaded) != cudaSuccess) {
        versions.loaded = 0;
    }
    if (cudaDriverGetVersion(&versions.driver) != cudaSuccess) {
        versions.driver = 0;
    }
    static_cast<void>(cudaGetLastError());
    return versions;
}

std::string how_to_build_for_other_cuda() {
    return "build dflash against a LibTorch for the CUDA that is there, for example "
           "PIP_INDEX_URL=https://download.pytorch.org/whl/cu128 DFLASH_VENV=$PWD/.venv-cu128 "
           "tools/setup, then cmake --preset release -DDFLASH_VENV=$PWD/.venv-cu128 "
           "(CONTRIBUTING.md, Another LibTorch)";
}

void check_versions(const CudaVersions& versions) {
    if (versions.loaded / 1000 != versions.built / 1000 || versions.loaded < versions.built) {
        throw Error(ErrorKind::Device,
                    {.what = fmt::format("the CUDA runtime is not the one of the build: got {}, "
                                         "expected {}",
                                         format_cuda_version(versions.loaded),
                                         format_cuda_version(versions.built)),
                     .where = "libcudart",
                     .cause = {},
                     .hint = "Look for another CUDA in LD_LIBRARY_PATH or LD_PRELOAD, or " +
                             how_to_build_for_other_cuda()});
    }
    if (versions.driver != 0 && versions.driver / 1000 < versions.loaded / 1000) {
        // CUDA 13 needs a driver of the 580 series (CUDA toolkit release notes, table of minimum
        // driver versions).
        throw Error(ErrorKind::Device,
                    {.what = fmt::format("the NVIDIA driver is too old: got one for CUDA {}, "
                                         "expected CUDA {}.0 or newer",
                                         format_cuda_version(versions.driver),
                                         versions.loaded / 1000),
                     .where = "libcuda",
                     .cause = {},
                     .hint = "Install driver 580 or newer, or " + how_to_build_for_other_cuda()});
    }
}

}  // namespace dflash::gpu
