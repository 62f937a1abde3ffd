// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/train/epoch_sizes.hpp>

#include <algorithm>

namespace dflash::train {

EpochSizes::EpochSizes(std::int64_t num_samples) {
    DFLASH_CHECK(num_samples >= 1, "{} samples to train on", num_samples);
    changes_.push_back({.first_epoch = 0, .num_samples = num_samples});
}

void EpochSizes::grow(std::int64_t first_epoch, std::int64_t num_samples) {
    DFLASH_CHECK(
        first_epoch >= changes_.back().first_epoch && num_samples >= changes_.back().num_samples,
        "{} samples from epoch {} after {} from epoch {}",
        num_samples,
        first_epoch,
        changes_.back().num_samples,
        changes_.back().first_epoch);
    if (first_epoch == changes_.back().first_epoch) {
        changes_.pop_back();  // it was never used
    }
    changes_.push_back({first_epoch, num_samples});
}

std::int64_t EpochSizes::in_epoch(std::int64_t epoch) const {
    const auto next = std::ranges::upper_bound(changes_, epoch, {}, &Change::first_epoch);
    DFLASH_CHECK(next != changes_.begin(), "epoch {}", epoch);
    return std::prev(next)->num_samples;
}

std::int64_t EpochSizes::in_epochs(std::int64_t num_epochs) const {
    std::int64_t total = 0;
    for (std::size_t i = 0; i < changes_.size() && changes_[i].first_epoch < num_epochs; ++i) {
        const std::int64_t end = i + 1 < changes_.size()
                                     ? std::min(changes_[i + 1].first_epoch, num_epochs)
                                     : num_epochs;
        total += (end - changes_[i].first_epoch) * changes_[i].num_samples;
    }
    return total;
}

}  // namespace dflash::train
