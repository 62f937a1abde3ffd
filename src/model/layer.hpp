// SPDX-License-Identifier: Apache-2.0
// One decoder layer of the drafter, forward and backward. Letters: see shapes.hpp; X = (Q + 2 K) d
// columns of the joined q, k, v projection, Y = 2 K d of its k, v part.
#pragma once

#include "buffer_set.hpp"
#include "shapes.hpp"

#include <dflash/model/attention.hpp>
#include <dflash/model/drafter.hpp>
#include <dflash/tensor/row_ops.hpp>

#include <ATen/ATen.h>
#include <cstdint>

namespace dflash::model {

/// Views of one layer's weights, or of their gradients, in a flat buffer. Weights that share their
/// input lie one after another and are used as one matrix.
struct LayerWeights {
    at::Tensor input_norm_H;
    at::Tensor qkv_XH;
    at::Tensor kv_YH;  // the last rows of qkv_XH
    at::Tensor o_HQd;
    at::Tensor q_norm_d;
    at::Tensor k_norm_d;
    at::Tensor post_norm_H;
    at::Tensor gate_up_2IH;
    at::Tensor down_HI;

    LayerWeights(const DraftWeights& weights, const at::Tensor& flat, std::int64_t layer);
};

/// What the backward needs of the forward. Normalised and rotated rows are made again.
struct LayerActivations {
    at::Tensor h_in_MH;
    at::Tensor inverse_rms_in_M1;
    at::Tensor qkv_MX;
    at::Tensor kv_context_TY;
    at::Tensor inverse_rms_q_MQ1;
    at::Tensor inverse_rms_k_MK1;
    at::Tensor inverse_rms_k_context_TK1;
    AttentionOutputs attention;
    at::Tensor h_mid_MH;
    at::Tensor inverse_rms_mid_M1;
    at::Tensor gate_up_M2I;
    at::Tensor h_out_MH;  // h_in of the next layer

    /// `place` is the layer's number while a backward follows; without one, two places alternate.
    LayerActivations(BufferSet& buffers, const Shapes& s, std::int64_t place, std::int64_t next);
};

/// Memory that all layers share.
struct LayerScratch {
    at::Tensor normed_MH;
    at::Tensor q_MQd;
    at::Tensor k_block_MKd;
    at::Tensor k_context_TKd;
    at::Tensor activation_MI;

    LayerScratch(BufferSet& buffers, const Shapes& s);
};

/// Memory of the backward, shared by all layers, and the two gradients that run through it.
struct BackwardScratch {
    at::Tensor dh_MH;          // sum dtype: gradient of the layer's output, then of its input
    at::Tensor dcontext_TH;    // sum dtype: summed over all layers
    at::Tensor dh_rounded_MH;  // the same in the dtype of products, unless that is it
    at::Tensor dnormed_MH;     // sum dtype
    at::Tensor dactivation_MI;
    at::Tensor dgate_up_M2I;
    at::Tensor do_MQd;
    at::Tensor dq_MQd;
    at::Tensor dk_MKd;
    at::Tensor dk_context_TKd;
    at::Tensor dqkv_MX;
    at::Tensor dkv_context_TY;

    BackwardScratch(BufferSet& buffers, const Shapes& s);
};

/// What a layer reads besides its weights and its input.
struct LayerInputs {
    const at::Tensor& context_TH;
    const tensor::RotaryTable& block_rotary;    // [M]
    const tensor::RotaryTable& context_rotary;  // [T]
    AttentionMask mask;
};

/// Columns of joined projections as heads: views [rows, heads, d].
at::Tensor heads_of(const at::Tensor& joined,
                    std::int64_t first_head,
                    std::int64_t num_heads,
                    std::int64_t d);

/// First part of a forward: q, k and v of the block rows into a.qkv; q and k, normed and turned,
/// into the scratch.
void project_block(const Shapes& s,
                   const LayerWeights& weights,
                   const tensor::RotaryTable& block_rotary,
                   tensor::RowOps& ops,
                   LayerActivations& a,
                   LayerScratch& scratch);

/// Last part: a.h_out of a.h_in and of what attention left in a.attention.o.
void finish_layer(const Shapes& s,
                  const LayerWeights& weights,
                  tensor::RowOps& ops,
                  LayerActivations& a,
                  LayerScratch& scratch);

/// h_in -> h_out.
void layer_forward(const Shapes& s,
                   const LayerWeights& weights,
                   const LayerInputs& in,
                   BlockAttention& attention,
                   tensor::RowOps& ops,
                   LayerActivations& a,
                   LayerScratch& scratch);

/// dh (and dh_rounded) of h_out -> of h_in; adds to dcontext and to the layer's weight gradients.
void layer_backward(const Shapes& s,
                    const LayerWeights& weights,
                    const LayerWeights& gradients,
                    const LayerInputs& in,
                    BlockAttention& attention,
                    tensor::RowOps& ops,
                    const LayerActivations& a,
                    LayerScratch& scratch,
                    BackwardScratch& back);

}  // namespace dflash::model
