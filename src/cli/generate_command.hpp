// SPDX-License-Identifier: Apache-2.0
// dflash generate: the target's answers to the rows of data files.
#pragma once

#include "command_parser.hpp"

#include <string>

namespace dflash::cli {

/// Returns 0, or 130 / 143 if a signal ended it after saving. Throws Error.
int generate_command(const Arguments& arguments, const std::string& command_line);

}  // namespace dflash::cli
