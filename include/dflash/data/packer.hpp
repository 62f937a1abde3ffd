// SPDX-License-Identifier: Apache-2.0
// Packing: consecutive samples of the epoch's order, a window at a time, into rows. A pure function
// of the window's samples and the settings; neither timing nor devices enter.
#pragma once

#include <dflash/data/anchors.hpp>
#include <dflash/data/packed_row.hpp>

#include <cstdint>
#include <vector>

namespace dflash::data {

struct PackOptions {
    std::int64_t window = 2048;  ///< samples
    std::int64_t row_tokens = 8192;
    std::int64_t row_anchors = 2048;
    BlockRule block;
    std::uint64_t seed = 0;
};

/// Order of one epoch: `samples` permuted by (seed, epoch).
std::vector<SampleId> epoch_order(const std::vector<SampleId>& samples,
                                  std::uint64_t seed,
                                  std::int64_t epoch);

/// Packs samples that arrive in order. Serial.
class Packer {
  public:
    /// Starts at `start`: the rows of its window that were consumed before are packed and thrown
    /// away.
    Packer(PackOptions options, Cursor start);

    /// Takes the next sample; returns the rows of the window when it is complete (or at the epoch's
    /// end), otherwise none. An `end` sample flushes and returns, last, a row with `end`. A window
    /// in which nothing was usable gives one empty row, so that its samples are returned.
    std::vector<PackedRow> push(Sample sample);

    /// Packs one window: rows without index and cursor. First-fit by decreasing length or in order:
    /// documents are never split; a document larger than a row gets a row of its own.
    static std::vector<PackedRow> pack_window(const PackOptions& options,
                                              std::vector<Sample> samples);

  private:
    PackOptions options_;
    Cursor cursor_;
    std::int64_t skip_rows_;
    std::int64_t next_index_ = 0;
    std::vector<Sample> window_;
    std::int64_t seen_in_window_ = 0;
    std::int64_t carried_samples_ = 0;
};

}  // namespace dflash::data
