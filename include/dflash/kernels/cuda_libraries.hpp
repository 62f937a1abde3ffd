// SPDX-License-Identifier: Apache-2.0
// Versions of the CUDA libraries that this module uses: of the headers it was compiled with, and of
// what is in this process.
#pragma once

#include <optional>
#include <string>

namespace dflash::kernels {

struct LoadedLibrary {
    std::string version;  ///< "13.1.0"
    std::string file;     ///< that it was loaded from
};

/// NVRTC, by the version of the CUDA headers: its own has none. The loaded one is opened by this
/// call; nothing where there is none.
std::string nvrtc_build_version();
std::optional<LoadedLibrary> loaded_nvrtc();

/// cuBLASLt, which LibTorch brings. Empty or nothing where it was not there.
std::string cublaslt_build_version();
std::optional<LoadedLibrary> loaded_cublaslt();

}  // namespace dflash::kernels
