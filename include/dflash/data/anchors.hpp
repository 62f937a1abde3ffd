// SPDX-License-Identifier: Apache-2.0
// Which tokens start a block, and what each slot of a block counts.
// Rule of SpecForge a6b6b02 `_sample_anchor_positions`: p and p+1 both trainable, 0 <= p <= S-2;
// tails allowed.
#pragma once

#include <dflash/data/packed_row.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace dflash::data {

/// How slots are weighted: exp(-(k-1)/gamma) for k = 1 .. B-1, or 1 for all when gamma is 0
/// ("uniform").
struct BlockRule {
    std::int32_t block_size = 16;
    double loss_decay_gamma = 7;
    std::int64_t max_anchors = 512;  ///< per document
};

/// gamma of the paper for a block size: 7, 5, 4 for 16, 10, 8; for others that of the nearest,
/// the smaller one if two are equally near.
double default_gamma(std::int64_t block_size);

/// Weight of slot k (k = 0 gives 0).
float slot_weight(const BlockRule& rule, std::int32_t k);

/// Positions p of a document where a block can start, rising.
std::vector<std::int32_t> anchor_candidates(std::span<const std::uint8_t> trainable);

/// At most rule.max_anchors candidates without replacement, rising; a pure function of (seed,
/// epoch, sample id). `held_out` draws from the evaluation's stream, which does not change with the
/// epoch.
std::vector<std::int32_t> draw_anchors(std::span<const std::uint8_t> trainable,
                                       const BlockRule& rule,
                                       std::uint64_t seed,
                                       std::int64_t epoch,
                                       SampleId id,
                                       bool held_out = false);

/// Appends the blocks of the row's last document (row.documents.back(), whose tokens are in the row
/// already) to row.blocks: anchors, labels, weights. `anchors` are positions inside the document,
/// rising. A slot counts iff k >= 1, p + k lies in the document and is trainable, whatever lies
/// between; slots whose weight underflows to 0 are not listed.
void append_blocks(PackedRow& row,
                   std::span<const std::uint8_t> trainable,
                   std::span<const std::int32_t> anchors,
                   const BlockRule& rule);

/// Appends a document (tokens, positions, documents) without blocks.
void append_document(PackedRow& row, SampleId id, std::span<const TokenId> tokens);

}  // namespace dflash::data
