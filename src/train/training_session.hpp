// SPDX-License-Identifier: Apache-2.0
// One stretch of training: from loading to the last save, on data that are there.
#pragma once

#include <dflash/train/checkpoint.hpp>
#include <dflash/train/prepared_run.hpp>
#include <dflash/train/progress.hpp>
#include <dflash/train/run_report.hpp>
#include <dflash/train/session.hpp>
#include <dflash/train/watchdog.hpp>
#include <dflash/train/whereabouts.hpp>

#include <optional>
#include <string>

namespace dflash::train {

/// What lives as long as the run, over all its stretches.
struct SessionParts {
    const std::string& folder;
    RunReport& report;
    StopSignals& signals;
    Whereabouts& whereabouts;
    Watchdog& watchdog;
    StatusBoard& board;
};

struct SessionResult {
    Progress progress;
    bool wants_rows = false;  ///< it came to `end`: there is more to train on behind it
};

/// Loads, trains and saves. `checkpoint`: where it goes on. `end`: where the data end for now.
/// Throws the first error of the stretch.
SessionResult run_session(PreparedRun run,
                          const TrainRequest& request,
                          const SessionParts& parts,
                          std::optional<Checkpoint> checkpoint,
                          std::optional<data::Cursor> end);

}  // namespace dflash::train
