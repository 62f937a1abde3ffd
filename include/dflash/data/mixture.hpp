// SPDX-License-Identifier: Apache-2.0
// How often an epoch takes the rows of each file: weights of a list of data files.
#pragma once

#include <dflash/core/types.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dflash::data {

/// Of a file with weight w and n samples an epoch takes each sample floor(w) times, and
/// round((w - floor(w)) * n) of them once more: others in each epoch, drawn without replacement.
/// Immutable.
class Mixture {
  public:
    /// Every sample once.
    Mixture() = default;

    /// `first_rows`: of each file the id of its first row (those of further files lie behind them
    /// all); `weights` are above 0.
    Mixture(std::vector<std::int64_t> first_rows, std::vector<double> weights);

    /// Whether every sample is taken once.
    bool is_plain() const;

    /// Samples of an epoch over `ids` (rising).
    std::int64_t num_samples(std::span<const SampleId> ids) const;

    /// Those of one epoch, file by file; a pure function of the ids, the seed and the epoch.
    std::vector<SampleId> draw(std::span<const SampleId> ids,
                               std::uint64_t seed,
                               std::int64_t epoch) const;

    /// The weights with commas between; empty if it is plain.
    std::string to_text() const;

  private:
    std::span<const SampleId> of_file(std::span<const SampleId> ids, std::size_t file) const;

    std::vector<std::int64_t> first_rows_;
    std::vector<double> weights_;
};

}  // namespace dflash::data
