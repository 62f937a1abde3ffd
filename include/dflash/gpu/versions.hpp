// SPDX-License-Identifier: Apache-2.0
// Which CUDA this program was built with, which one it runs with, and whether they fit.
#pragma once

#include <string>

namespace dflash::gpu {

/// CUDA versions as the runtime counts them: 1000 * major + 10 * minor; 0 = none.
struct CudaVersions {
    int built = 0;   ///< of the headers at compile time
    int loaded = 0;  ///< of the libcudart in this process
    int driver = 0;  ///< the newest one the driver supports; 0 without a driver
};

/// "13.0".
std::string format_cuda_version(int version);

/// Asks the runtime; makes no context. Any thread.
CudaVersions cuda_versions() noexcept;

/// Throws Error{Device} that names both versions if the loaded runtime has another major version
/// than that of the build or is older (within one CUDA only adds to its interface), or if there is
/// a driver and its major version is older than the runtime's (within one an older driver serves:
/// CUDA's minor-version compatibility).
void check_versions(const CudaVersions& versions);

/// The end of a hint: "build dflash against ..., for example ...".
std::string how_to_build_for_other_cuda();

}  // namespace dflash::gpu
