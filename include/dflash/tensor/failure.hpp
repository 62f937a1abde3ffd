// SPDX-License-Identifier: Apache-2.0
// Failures that LibTorch reports in its own way.
#pragma once

#include <exception>

namespace dflash::tensor {

/// A failure of LibTorch that is none of ours as an Error: memory of a GPU that is not there, a
/// call of CUDA that failed (both Error{Device}), an environment variable that it refuses
/// (Error{Config}). Every other exception as it is. Neither throws nor waits.
std::exception_ptr as_failure(std::exception_ptr error) noexcept;

}  // namespace dflash::tensor
