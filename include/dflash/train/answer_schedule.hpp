// SPDX-License-Identifier: Apache-2.0
// Which rows have to be answered before training can go on, and how far it can go then.
#pragma once

#include <dflash/train/prepared_run.hpp>

#include <optional>
#include <vector>

namespace dflash::train {

/// Answering and training take turns. The order of samples is the one that it would be if all
/// answers were there, so where the turns lie changes nothing in what is trained.
struct AnswerStage {
    std::vector<SampleId> rows;  ///< to be answered first
    /// The begin of the window up to which answers reach then; nothing: all that is left has them.
    std::optional<data::Cursor> end;
};

/// The stage that begins at `from`: held-out rows, and the next `shard_rows` pending ones in the
/// order of the run, up to the end of their window.
AnswerStage next_stage(const PreparedRun& run, const Settings& settings, const data::Cursor& from);

}  // namespace dflash::train
