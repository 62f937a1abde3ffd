// SPDX-License-Identifier: Apache-2.0
// Packing: consecutive samples of the epoch's order, a window at a time, into rows. A pure function
// of the window's samples and the settings; neither timing nor devices enter.
#pragma once

#include <dflash/data/anchors.hpp>
#include <dflash/data/packed_row.hpp>

#include <cstdint>
#include <vector>

namespace dflash::data {

/// All at least 1. A row closes at row_tokens or row_anchors, whichever is first.
struct PackOptions {
    std::int64_t window = 2048;  ///< samples
    std::int64_t row_tokens = 8192;
    std::int64_t row_anchors = 2048;
    BlockRule block{};
    std::uint64_t seed = 0;
    bool held_out = false;  ///< anchors of the evaluation, which do not change with the epoch
};

/// Order of one epoch: `samples` permuted by (seed, epoch).
std::vector<SampleId> epoch_order(const std::vector<SampleId>& samples,
                                  std::uint64_t seed,
                                  std::int64_t epoch);

/// Packs samples that arrive in order. Serial.
///
/// Every sample is counted in `num_samples` of exactly one row: with its document, or in `dropped`
/// of its window's first row, or, if its row was consumed before `start`, with the first row that
/// this object returns. The row with `end` counts the END sample.
class Packer {
  public:
    /// Starts at `start`: the first sample is the first one of its window, and the rows of that
    /// window that were consumed before are packed and thrown away.
    Packer(PackOptions options, Cursor start);

    /// Takes the next sample; returns the rows of the window when it is complete (or at the epoch's
    /// end), otherwise none. An `end` sample flushes and returns, last, a row with `end`. A window
    /// in which nothing was usable gives one empty row, so that its samples are returned.
    ///
    /// A window that END cuts short is packed as far as it came. Its rows are not those of the
    /// whole window, so none of them moves the cursor and none is thrown away: a run that resumes
    /// there takes the window again from where it began.
    ///
    /// Throws Error{Config} if `start` lies behind the last row of its window (other data or
    /// settings than before), Error{Internal} if a sample is not the next of the order.
    std::vector<PackedRow> push(Sample sample);

    /// Packs one window into few rows (of chat data 0 to 3 % more than the least that could be):
    /// rows without index and cursor. Documents are never split; a document larger than a row, in
    /// tokens or in anchors, gets a row of its own. Documents of a row are in the order of the
    /// samples, and the rows in an order that says nothing about their lengths.
    static std::vector<PackedRow> pack_window(const PackOptions& options,
                                              std::vector<Sample> samples);

  private:
    std::vector<PackedRow> close_window(bool end_of_epoch);
    std::vector<PackedRow> flush();

    PackOptions options_;
    Cursor cursor_;  // of the window that is being filled
    std::int64_t next_index_ = 0;
    std::vector<Sample> window_;
    bool ended_ = false;
};

}  // namespace dflash::data
