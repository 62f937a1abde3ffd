// SPDX-License-Identifier: Apache-2.0
// dflash data: whether data files are all right for a target.
#pragma once

#include "command_parser.hpp"

#include <string>

namespace dflash::cli {

/// Judges all rows and prints the report; changes nothing. Returns 0, or 3 if a run would refuse
/// the data. Throws Error: Config (exit 2), Data (3).
int data_command(const Arguments& arguments, const std::string& command_line);

}  // namespace dflash::cli
