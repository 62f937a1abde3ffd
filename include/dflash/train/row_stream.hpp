// SPDX-License-Identifier: Apache-2.0
// The host side of the pipeline on real data: the order of samples over the epochs, encoding, and
// rows in the rhythm of steps.
#pragma once

#include <dflash/data/dataset.hpp>
#include <dflash/data/mixture.hpp>
#include <dflash/data/packer.hpp>
#include <dflash/pipeline/stages.hpp>
#include <dflash/train/epoch_sizes.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace dflash::train {

/// The samples of all epochs in order, from a cursor on.
class EpochSource final : public pipeline::SampleSource {
  public:
    /// An epoch is drawn of the first sizes.in_epoch() of `samples`, so samples behind them do not
    /// change its order. `num_epochs` empty: without end (a run bounded by tokens or hours).
    /// `stop`: the beginning of a window at which the samples end for now.
    EpochSource(std::vector<SampleId> samples,
                EpochSizes sizes,
                data::Mixture mixture,
                std::uint64_t seed,
                std::int64_t window,
                data::Cursor start,
                std::optional<std::int64_t> num_epochs,
                std::optional<data::Cursor> stop = std::nullopt);

    data::SampleRef next() override;

  private:
    /// The samples that epoch_ is drawn of.
    std::span<const SampleId> drawn_of() const;

    std::vector<SampleId> samples_;
    EpochSizes sizes_;
    data::Mixture mixture_;
    std::uint64_t seed_;
    std::int64_t window_;
    std::optional<std::int64_t> num_epochs_;
    std::optional<data::Cursor> stop_;
    std::int64_t epoch_;
    std::int64_t place_;
    std::int64_t index_ = 0;
    std::vector<SampleId> order_;  // of epoch_; empty: not made yet
};

/// Reads, renders and tokenises samples of a dataset.
class DatasetEncoder final : public pipeline::Encoder {
  public:
    explicit DatasetEncoder(const data::Dataset& dataset) : dataset_(dataset) {}

    data::Sample encode(const data::SampleRef& ref) override;

  private:
    const data::Dataset& dataset_;
};

/// Packs, and puts empty rows in so that row j of every step lies at an index that is j modulo the
/// number of drafters: then a row's slot, which is its index modulo the slots, belongs to drafter j
/// mod D. Empty rows contribute nothing, so the maths does not depend on D.
class StepRowPacker final : public pipeline::RowPacker {
  public:
    StepRowPacker(data::PackOptions options,
                  data::Cursor start,
                  std::int64_t rows_per_step,
                  int num_drafters);

    std::vector<data::PackedRow> push(data::Sample sample) override;

  private:
    void append(std::vector<data::PackedRow>& rows, data::PackedRow row);
    void pad(std::vector<data::PackedRow>& rows, std::int64_t count, const data::Cursor& next);

    data::Packer packer_;
    std::int64_t rows_per_step_;
    std::int64_t num_drafters_;
    std::int64_t rows_in_step_ = 0;
    std::int64_t next_index_ = 0;
};

}  // namespace dflash::train
