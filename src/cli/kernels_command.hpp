// SPDX-License-Identifier: Apache-2.0
// `dflash kernels`.
#pragma once

#include "command_parser.hpp"

#include <string>

namespace dflash::cli {

/// Lists the kernels of a configuration and what is cached of them; compiles them; clears the
/// cache. Returns 0; throws Error: Config (exit 2), Compile (4), Storage (6).
int kernels_command(const Arguments& arguments, const std::string& command_line);

}  // namespace dflash::cli
