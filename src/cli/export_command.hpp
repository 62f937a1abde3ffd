// SPDX-License-Identifier: Apache-2.0
// dflash export: a saved drafter in the format of a server or of another trainer.
#pragma once

#include "command_parser.hpp"

#include <string>

namespace dflash::cli {

/// Writes it and prints how to serve it; returns 0. Throws Error as train::export_draft.
int export_command(const Arguments& arguments, const std::string& command_line);

}  // namespace dflash::cli
