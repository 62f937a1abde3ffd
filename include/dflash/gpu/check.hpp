// SPDX-License-Identifier: Apache-2.0
// What becomes of the CUDA runtime's status codes.
#pragma once

#include <cuda_runtime_api.h>
#include <source_location>

namespace dflash::gpu {

/// Throws Error{Device} unless `status` is cudaSuccess: with the error's name and text, the current
/// device and the place of the call. The error is cleared first (as far as CUDA allows: after a
/// fault of the device every later call fails as well), so that nobody else trips over it.
void check(cudaError_t status, std::source_location where = std::source_location::current());

/// As check(), but logs a warning instead of throwing: for destructors. Quiet while the process
/// ends and the runtime is unloading.
void report(cudaError_t status,
            std::source_location where = std::source_location::current()) noexcept;

}  // namespace dflash::gpu
