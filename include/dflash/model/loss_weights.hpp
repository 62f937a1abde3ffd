// SPDX-License-Identifier: Apache-2.0
// What a slot counts in the loss, and what the loss of a step is divided by.
//
// N blocks of B slots, R head rows: the slots that count.
#pragma once

#include <dflash/data/packed_row.hpp>

#include <ATen/ATen.h>
#include <cstdint>

namespace dflash::model {

/// Packed: the weights that the packer gave, which do not depend on the drafter. The others follow
/// the drafter's own probabilities, as constants (no gradient flows through them).
///
/// D-PACE (arXiv 2605.18810): with q the probability of a slot's label and q' = (1 - alpha) q +
/// alpha, the expected number of accepted tokens is about the sum over slots m of P_m, the product
/// of q' up to m. A slot k counts as much as it can change: P_k C_k, where C_k = 1 + the sum over
/// m > k of the product of q' behind k up to m. DpacePrefix is P_k alone, DpaceSuffix C_k alone
/// (SpecForge a6b6b02, its loss types dpace-cumulative-confidence-only and
/// dpace-continuation-value-only). Slots that do not count are passed over.
enum class SlotWeighting { Packed, Dpace, DpacePrefix, DpaceSuffix };

struct LossWeights {
    SlotWeighting kind = SlotWeighting::Packed;
    double alpha = 0.5;  ///< of D-PACE, 0 to 1
};

/// What a row adds to the divisor of its step's loss, known before the row is worked on: the sum of
/// its packed weights or, where weights are the drafter's, the number of its documents.
double loss_divisor(const LossWeights& weights, const data::PackedRow& row);

/// D-PACE's weights in the dtype of `cross_entropy_R`, fp64 inside. `head_row_R`: int64, n B + k,
/// rising. Asynchronous on the current stream; the same bits every time.
at::Tensor dpace_weights(const LossWeights& weights,
                         const at::Tensor& cross_entropy_R,
                         const at::Tensor& head_row_R,
                         std::int64_t num_blocks,
                         std::int64_t block_size);

}  // namespace dflash::model
