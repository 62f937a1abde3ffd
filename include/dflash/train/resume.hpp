// SPDX-License-Identifier: Apache-2.0
// What a run that is resumed may do otherwise than before. Nothing changes by itself: settings of a
// resume come from the run's own config.toml, and what differs was asked for.
#pragma once

#include <dflash/train/checkpoint.hpp>
#include <dflash/train/prepared_run.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace dflash::train {

/// Whether a setting that is part of the maths may change when a run is resumed: how long the run
/// is, the learning rate and its schedule, weight decay and clipping. They act on steps to come
/// only, so nothing that was done must be done again. Others would make what was done worthless
/// (the drafter's shape), or undone (the order of the data, what is held out).
bool may_change_on_resume(std::string_view setting);

/// The history of a checkpoint's data and its place in them. Throws Error{Config} if the checkpoint
/// has none that can be read.
SavedData saved_data(const Checkpoint& checkpoint, bool extend, const std::string& run_folder);

/// What is not as it was, of what may change: {"train.lr", "0.0006", "0.0001"}, in TOML notation.
struct ResumeChange {
    std::string name;
    std::string before;
    std::string now;
};

/// Compares all but the data, which prepare_run has compared. Throws Error{Config} listing every
/// entry that differs and must not, with both values and the command that starts a new run.
std::vector<ResumeChange> changes_on_resume(const Identity& saved,
                                            const Identity& now,
                                            const std::string& run_folder);

/// The same and the growth of the data as lines for people, with what they do to the length and the
/// learning rate. Empty if nothing changed.
std::vector<std::string> describe_changes(const std::vector<ResumeChange>& changes,
                                          const PreparedRun& run,
                                          const Settings& settings,
                                          const Progress& progress);

/// Says that nothing is left to train, and how to train longer, if that is so.
std::optional<std::string> nothing_left(const PreparedRun& run,
                                        const Settings& settings,
                                        const Progress& progress,
                                        const std::string& run_folder);

}  // namespace dflash::train
