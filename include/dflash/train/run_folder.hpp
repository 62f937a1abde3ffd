// SPDX-License-Identifier: Apache-2.0
// The folder of a run: its name, and the files that say what was run.
#pragma once

#include <dflash/train/prepared_run.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace dflash::train {

/// run.output, or runs/<target>-<yyyymmdd-hhmm>, with -2, -3 ... behind it if that is taken. Throws
/// Error{Config} if run.output is there and not empty.
std::string new_run_folder(const RunSettings& settings, const std::string& target_name);

/// Creates the folder, or finds out that it cannot be written: Error{Storage}. Called before
/// anything is loaded.
void create_run_folder(const std::string& folder);

/// How this process came to the run.
struct RunStart {
    std::string command_line;
    std::int64_t step = 0;             ///< it continues after this step
    std::vector<std::string> changes;  ///< what is otherwise than before, for people
};

/// Writes config.toml (resolved settings), environment.json (see environment_json) and
/// data-report.md and .json. What they said of earlier starts of the run is kept: environment.json
/// holds them all, config.toml lists what changed when.
void describe_run(const std::string& folder,
                  Settings& settings,
                  const PreparedRun& run,
                  const RunStart& start);

/// data-report.md and .json.
void write_data_report(const std::string& folder, const data::DataReport& report);

}  // namespace dflash::train
