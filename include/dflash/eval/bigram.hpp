// SPDX-License-Identifier: Apache-2.0
// The baseline every drafter has to beat: a table of the most frequent successor of each token in
// the training answers, applied k times for slot k.
#pragma once

#include <dflash/data/packed_row.hpp>

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace dflash::eval {

class BigramTable {
  public:
    /// Counts the pairs (t, t+1) whose second token is trainable.
    void add(std::span<const TokenId> tokens, std::span<const std::uint8_t> trainable);

    /// Chooses the successors; ties go to the smaller id. Call once, after the last add().
    void finish();

    /// Predictions for the head rows of a packed row: slot k gets the k-th successor of the
    /// anchor's token; -1 where the table has none.
    std::vector<TokenId> predict(const data::PackedRow& row) const;

  private:
    std::unordered_map<std::uint64_t, std::int64_t> counts_;  // (token << 32 | successor) -> count
    std::unordered_map<TokenId, TokenId> successor_;
};

}  // namespace dflash::eval
