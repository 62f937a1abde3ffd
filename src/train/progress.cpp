// SPDX-License-Identifier: Apache-2.0
#include <dflash/train/progress.hpp>

#include <algorithm>

namespace dflash::train {

void Progress::consume(const data::PackedRow& row) {
    cursor = row.next;
    // Not row.num_samples: that is what goes back to the pipeline, and after a resume it holds rows
    // consumed before.
    samples += static_cast<std::int64_t>(row.documents.size() + row.dropped.size());
    if (!row.empty()) {
        ++rows;
        tokens += row.num_tokens();
    }
}

RunLength::RunLength(const TrainSettings& settings, std::int64_t num_samples)
    : settings_(settings), num_samples_(num_samples) {}

double RunLength::fraction_done(const Progress& progress) const {
    double fraction = 0;
    if (settings_.hours) {
        fraction = progress.trained_s / (*settings_.hours * 3600);
    } else if (settings_.tokens) {
        fraction = static_cast<double>(progress.tokens) / static_cast<double>(*settings_.tokens);
    } else {
        fraction = static_cast<double>(progress.samples) /
                   static_cast<double>(settings_.epochs * num_samples_);
    }
    return std::clamp(fraction, 0.0, 1.0);
}

bool RunLength::finished(const Progress& progress) const {
    return fraction_done(progress) >= 1 ||
           (settings_.max_steps && progress.step >= *settings_.max_steps);
}

}  // namespace dflash::train
