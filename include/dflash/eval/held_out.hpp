// SPDX-License-Identifier: Apache-2.0
// What held-out blocks say about a drafter: accuracy by slot, and the acceptance length they let
// one expect.
#pragma once

#include <dflash/data/packed_row.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace dflash::eval {

/// Counts over blocks; addition is exact, so the order in which rows are added does not matter.
class HeldOutScore {
  public:
    explicit HeldOutScore(std::int32_t block_size);

    /// Adds the predictions for the head rows of a packed row: predicted[r] for
    /// row.blocks.head_rows[r].
    void add(const data::BlockPlan& blocks, std::span<const TokenId> predicted);

    /// Share of right predictions of slot k = 1 .. B-1, at index k - 1; 0 where nothing was
    /// counted.
    std::vector<double> accuracy_by_slot() const;

    /// Share of right predictions over all slots.
    double accuracy() const;

    /// Mean over blocks of 1 + the number of leading slots that are right: what greedy verification
    /// would accept, bonus token included, if the target wrote exactly the held-out text. A slot
    /// that is no label (past the end of the document or of the answer) ends the count.
    double acceptance_length() const;

    std::int64_t num_blocks() const { return blocks_; }

    std::int64_t num_labels() const;

  private:
    std::vector<std::int64_t> correct_;  // [B]
    std::vector<std::int64_t> counted_;  // [B]
    std::int64_t blocks_ = 0;
    std::int64_t leading_ = 0;
};

}  // namespace dflash::eval
