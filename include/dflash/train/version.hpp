// SPDX-License-Identifier: Apache-2.0
// Versions of the program and of the libraries it runs with.
#pragma once

#include <dflash/io/json.hpp>

#include <string_view>

namespace dflash::train {

inline constexpr std::string_view kVersion = "0.1.0";

/// Names and versions of torch, the CUDA runtime and the driver, as loaded.
io::Json library_versions();

}  // namespace dflash::train
