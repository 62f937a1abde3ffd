// SPDX-License-Identifier: Apache-2.0
// The drafter written down again in the plainest way, as an oracle: one block at a time as at
// inference, with the context cut at the anchor, visibility decided pair by pair, any dtype, and
// only operations that autograd can follow.
#pragma once

#include <dflash/data/anchors.hpp>
#include <dflash/model/attention.hpp>
#include <dflash/model/drafter.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dflash::model {

struct ReferenceAttention {
    at::Tensor o_MQd;
    at::Tensor lse_MQ;
};

ReferenceAttention reference_attention(const AttentionInputs& in,
                                       const AttentionMask& mask,
                                       const data::BlockPlan& blocks);

/// Weights by name.
using Weights = std::map<std::string, at::Tensor>;

/// The drafter's compute weights, detached copies.
Weights copy_weights(DraftWeights& weights);

/// Final-norm output of the row's blocks, [M, H]. Reads of features only rows before an anchor.
at::Tensor reference_hidden(const DraftConfig& config,
                            const Weights& weights,
                            const at::Tensor& embed_VH,
                            const data::PackedRow& row,
                            const at::Tensor& features_KTH);

/// Sum over the head rows of weight x cross-entropy.
at::Tensor reference_loss(const at::Tensor& hidden_MH,
                          const at::Tensor& head_VH,
                          const data::PackedRow& row);

/// A small drafter: H 24, I 20, 4 / 2 heads of 6, V 40, 3 features.
DraftConfig small_config(std::vector<LayerType> layers, std::int64_t block_size = 5);

/// A row of documents of these lengths with these anchors (positions inside the document).
data::PackedRow make_row(const DraftConfig& config,
                         const std::vector<std::int32_t>& lengths,
                         const std::vector<std::vector<std::int32_t>>& anchors);

/// A drafter with random weights and ends in that dtype; norms are not 1.
std::unique_ptr<Drafter> make_drafter(const DraftConfig& config,
                                      at::ScalarType dtype,
                                      std::int64_t recompute_layers = 0);

/// max |a - b| / max |b|, in fp64; infinite for different shapes.
double largest_error(const at::Tensor& a, const at::Tensor& b);

}  // namespace dflash::model
