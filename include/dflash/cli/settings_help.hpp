// SPDX-License-Identifier: Apache-2.0
// The list of all settings, for people.
#pragma once

#include <string>

namespace dflash::cli {

/// All settings with type, default, limits and help, as `dflash train --help-settings` prints them.
std::string settings_help();

/// The table of docs/configuration.md: Markdown rows "| `train.lr` | 0.0006 | number, above 0 |
/// peak learning rate |".
std::string settings_table();

}  // namespace dflash::cli
