// SPDX-License-Identifier: Apache-2.0
// dflash eval: how many drafted tokens the target keeps.
#pragma once

#include "command_parser.hpp"

#include <string>

namespace dflash::cli {

/// Decodes prompts with a drafter, by prompt look-up and plainly, and prints the report; changes
/// nothing. Throws Error: Config (exit 2), Data (3), Device (4), Internal (70) if greedy texts
/// differ.
int eval_command(const Arguments& arguments, const std::string& command_line);

}  // namespace dflash::cli
