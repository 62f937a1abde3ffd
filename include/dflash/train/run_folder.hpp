// SPDX-License-Identifier: Apache-2.0
// The folder of a run: its name, and the files that say what was run.
#pragma once

#include <dflash/train/prepared_run.hpp>

#include <string>

namespace dflash::train {

/// run.output, or runs/<target>-<yyyymmdd-hhmm>, with -2, -3 ... behind it if that is taken. Throws
/// Error{Config} if run.output is there and not empty.
std::string new_run_folder(const RunSettings& settings, const std::string& target_name);

/// Creates the folder, or finds out that it cannot be written: Error{Storage}. Called before
/// anything is loaded.
void create_run_folder(const std::string& folder);

/// Writes config.toml (resolved settings), environment.json (command line, versions, devices,
/// target revision) and data-report.md.
void describe_run(const std::string& folder,
                  Settings& settings,
                  const PreparedRun& run,
                  const std::string& command_line);

}  // namespace dflash::train
