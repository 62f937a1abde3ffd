// SPDX-License-Identifier: Apache-2.0
// Looking at run folders from outside: runs that could be continued, and the best draft of one.
// Nothing here writes but point_to_best(), and a run that is going on is not disturbed.
#pragma once

#include <dflash/train/checkpoint.hpp>
#include <dflash/train/prepared_run.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

/// A run with the same target, data and maths that has not reached its length.
struct UnfinishedRun {
    std::string folder;
    std::int64_t step = 0;   ///< of its newest checkpoint; 0: it has only answers of the target
    bool running = false;    ///< a process holds its folder
    bool data_grew = false;  ///< rows were added to the data since
};

/// Searches the folders in `runs_folder`, by name. Whatever cannot be read is no such run.
std::vector<UnfinishedRun> find_unfinished_runs(const std::string& runs_folder,
                                                const Identity& now,
                                                const PreparedRun& run,
                                                const Settings& settings);

/// What to say of one: where it is and the command that continues it.
std::string to_text(const UnfinishedRun& run);

/// Warns of each such run in ./runs and beside `new_folder`, the folder of a run that begins.
void name_unfinished_runs(const Identity& now,
                          const PreparedRun& run,
                          const Settings& settings,
                          const std::string& new_folder);

struct BestDraft {
    std::int64_t step = 0;
    double acceptance_length = 0;  ///< held out
    std::string folder;            ///< RUN/step-NNNNNN/draft
};

/// The saved draft with the best held-out acceptance, the later one of equals; nothing if no saved
/// step was evaluated.
std::optional<BestDraft> best_draft(const std::string& run_folder);

/// Makes RUN/best a link to that step, or removes it if there is none. A link that cannot be
/// written is a warning.
void point_to_best(const std::string& run_folder);

}  // namespace dflash::train
