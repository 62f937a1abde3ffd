// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/text.hpp>
#include <dflash/train/progress.hpp>

#include <algorithm>
#include <fmt/format.h>

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

RunLength::RunLength(const TrainSettings& settings, const EpochSizes& sizes)
    : settings_(settings), num_samples_(sizes.in_epochs(settings.epochs)) {}

double RunLength::fraction_done(const Progress& progress) const {
    double fraction = 0;
    if (settings_.hours) {
        fraction = progress.trained_s / (*settings_.hours * 3600);
    } else if (settings_.tokens) {
        fraction = static_cast<double>(progress.tokens) / static_cast<double>(*settings_.tokens);
    } else {
        fraction = static_cast<double>(progress.samples) / static_cast<double>(num_samples_);
    }
    return std::clamp(fraction, 0.0, 1.0);
}

std::string RunLength::to_text() const {
    if (settings_.hours) {
        return fmt::format("{} hour{}", *settings_.hours, *settings_.hours == 1 ? "" : "s");
    }
    if (settings_.tokens) {
        return format_count(*settings_.tokens) + " tokens";
    }
    return fmt::format(
        "{} epoch{}", format_count(settings_.epochs), settings_.epochs == 1 ? "" : "s");
}

bool RunLength::finished(const Progress& progress) const {
    return fraction_done(progress) >= 1 ||
           (settings_.max_steps && progress.step >= *settings_.max_steps);
}

}  // namespace dflash::train
