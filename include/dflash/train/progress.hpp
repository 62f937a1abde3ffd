// SPDX-License-Identifier: Apache-2.0
// How far a run is: what the schedule, the due times and the checkpoints go by.
#pragma once

#include <dflash/data/packed_row.hpp>
#include <dflash/train/epoch_sizes.hpp>
#include <dflash/train/settings.hpp>

#include <cstdint>
#include <string>

namespace dflash::train {

/// Counts since the beginning of the run, over all its resumptions.
struct Progress {
    std::int64_t step = 0;     ///< optimizer steps done
    std::int64_t rows = 0;     ///< packed rows, without empty ones
    std::int64_t samples = 0;  ///< samples consumed, dropped ones included
    std::int64_t tokens = 0;   ///< tokens of packed rows
    double trained_s = 0;      ///< seconds spent in training
    data::Cursor cursor;       ///< where the data continues

    /// Takes a row into account; its cursor becomes the run's.
    void consume(const data::PackedRow& row);
};

/// How long a run is: the fraction done in [0, 1], by hours, tokens or epochs, whichever is set (in
/// this order). By epochs it is the samples consumed over those of all epochs, so that rows added
/// to the data during the run count from the epoch that has them.
class RunLength {
  public:
    RunLength(const TrainSettings& settings, const EpochSizes& sizes);

    double fraction_done(const Progress& progress) const;

    /// Whether the length is reached or train.max_steps cuts the run.
    bool finished(const Progress& progress) const;

    /// Whether the data ends by itself, after train.epochs.
    bool by_epochs() const { return !settings_.hours && !settings_.tokens; }

    /// Samples of all epochs; only by epochs.
    std::int64_t num_samples() const { return num_samples_; }

    /// "6 epochs", "3 hours", "1,000,000 tokens".
    std::string to_text() const;

  private:
    TrainSettings settings_;
    std::int64_t num_samples_;
};

}  // namespace dflash::train
