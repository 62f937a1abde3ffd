// SPDX-License-Identifier: Apache-2.0
// A run from settings to summary: finds and judges everything before anything is written, loads,
// trains, ends.
#pragma once

#include <dflash/data/packed_row.hpp>
#include <dflash/train/settings.hpp>
#include <dflash/train/stop_signals.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

struct FeatureSlot;

struct TrainRequest {
    Settings settings;
    std::vector<std::string> changed_settings;  ///< "train.lr = 0.001 (--lr)": what is not a
                                                ///< default, for the first lines
    std::vector<std::string> config_files;      ///< files that were read
    std::string command_line;
    std::string resume_folder;  ///< empty: a new run
    std::optional<std::int64_t> resume_step;
    bool extend_data = false;  ///< with resume_folder: rows may have been added to the data
    /// Sees every row as the training loop takes it, in order: for tests.
    std::function<void(const data::PackedRow&)> on_row{};
    /// Sees every row's slot on the target's worker, once its features are there (on CPU devices):
    /// for tests, which change them.
    std::function<void(const data::PackedRow&, const FeatureSlot&)> on_features{};
};

/// Reads settings of a run folder for a resume: RUN/config.toml. Throws Error{Config} if RUN is no
/// run folder.
std::string resume_config_path(const std::string& run_folder);

/// Prints the plan of a run; loads nothing and writes nothing.
void print_plan(const TrainRequest& request);

/// Trains. Returns 0, or 130 / 143 if a signal ended the run after saving. Throws Error.
int train(TrainRequest request, StopSignals& signals);

}  // namespace dflash::train
