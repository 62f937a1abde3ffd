// SPDX-License-Identifier: Apache-2.0
// What travels from the data files to the packer: one usable line as token ids with a loss mask.
#pragma once

#include <dflash/core/types.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace dflash::data {

/// Position in the training data: everything before it has been consumed. Taken at consumption, so
/// that a run that resumes here sees exactly the rows that an uninterrupted one would have seen.
struct Cursor {
    std::int64_t epoch = 0;
    std::int64_t window = 0;         ///< index of the window in the epoch's order
    std::int64_t row_in_window = 0;  ///< rows of that window that were consumed

    friend bool operator==(const Cursor&, const Cursor&) = default;
};

/// A place in the run's order of samples; the source emits consecutive `index`, the last one with
/// `end`.
struct SampleRef {
    std::int64_t index = 0;  ///< consecutive from 0 in this process: what the sequencer orders by
    std::int64_t epoch = 0;
    std::int64_t place = 0;  ///< place in the epoch's order
    SampleId id = -1;
    bool last_of_epoch = false;
    bool end = false;  ///< carries no sample: flushes the packer
};

/// One document: token ids and, for each, whether the target itself would have generated it.
struct Sample {
    SampleRef ref{};
    std::vector<TokenId> tokens{};          // [S]
    std::vector<std::uint8_t> trainable{};  // [S], 0 or 1
    std::string dropped{};                  ///< why this sample is empty; empty text for a good one
};

}  // namespace dflash::data
