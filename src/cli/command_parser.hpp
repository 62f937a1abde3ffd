// SPDX-License-Identifier: Apache-2.0
// Parsing that all commands share.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace dflash::cli {

using Arguments = std::vector<std::string>;

/// Parses the arguments of a command. Answers --help, and returns false then. Throws Error{Config};
/// unknown options get the nearest name, another trainer's spelling gets ours.
bool parse(CLI::App& app, Arguments arguments);

}  // namespace dflash::cli
