// SPDX-License-Identifier: Apache-2.0
// How many samples each epoch trains on: the same number, unless the data grew during the run.
#pragma once

#include <cstdint>
#include <vector>

namespace dflash::train {

/// Samples of an epoch are the first N of the list of training samples. A small value type.
class EpochSizes {
  public:
    /// Every epoch has `num_samples` of them. At least 1.
    explicit EpochSizes(std::int64_t num_samples);

    /// From `first_epoch` on there are `num_samples`. Neither may be less than in the call before.
    void grow(std::int64_t first_epoch, std::int64_t num_samples);

    std::int64_t in_epoch(std::int64_t epoch) const;

    /// Over the epochs 0 to num_epochs - 1.
    std::int64_t in_epochs(std::int64_t num_epochs) const;

    bool operator==(const EpochSizes&) const = default;

  private:
    struct Change {
        std::int64_t first_epoch;
        std::int64_t num_samples;

        bool operator==(const Change&) const = default;
    };

    std::vector<Change> changes_;  // rising; the first one is of epoch 0
};

}  // namespace dflash::train
