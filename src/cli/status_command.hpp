// SPDX-License-Identifier: Apache-2.0
// dflash status: what a run is doing, as its status.json says.
#pragma once

#include "command_parser.hpp"

#include <string>

namespace dflash::cli {

/// Prints it; returns 0. Throws Error{Config} if there is no run.
int status_command(const Arguments& arguments, const std::string& command_line);

}  // namespace dflash::cli
