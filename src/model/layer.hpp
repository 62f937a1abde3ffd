// SPDX-License-Identifier: Apache-2.0
// One decoder layer of the drafter, forward and backward. Letters: see shapes.hpp; X = (Q + 2 K) d
// columns of the joined q, k, v projection, Y = 2 K d of its k, v part. E rows at the layer's end:
// those that anything behind it reads, M but in the last layer. J rows at its input: M but in the
// first layer, whose input is one of U embedded rows for every block row.
#pragma once

#include "buffer_set.hpp"
#include "overlay.hpp"
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

/// Which rows of a layer there are, as int64 tensors.
struct LayerRows {
    at::Tensor source_M;  ///< input row of every block row; undefined: its own
    at::Tensor block_E;   ///< block row of every row at the end; undefined: its own
    at::Tensor source_E;  ///< input row of every row at the end; undefined: its own

    std::int64_t num_inputs(const Shapes& s) const { return source_M.defined() ? s.U : s.M; }

    std::int64_t num_ends(const Shapes& s) const {
        return block_E.defined() ? block_E.numel() : s.M;
    }
};

/// What the backward needs of the forward. Normalised and rotated rows are made again.
struct LayerActivations {
    at::Tensor h_in_JH;
    at::Tensor inverse_rms_in_J1;
    at::Tensor qkv_MX;
    at::Tensor kv_context_TY;
    at::Tensor inverse_rms_q_MQ1;
    at::Tensor inverse_rms_k_MK1;
    at::Tensor inverse_rms_k_context_TK1;
    AttentionOutputs attention;
    at::Tensor h_mid_EH;
    at::Tensor inverse_rms_mid_E1;
    at::Tensor gate_up_E2I;  // its own gradient after the backward
    at::Tensor h_out_EH;     // h_in of the next layer

    /// `place` is the layer's number while a backward follows; without one, two places alternate.
    /// With `gate_up_M2I` (defined) gate_up is its first rows, which other layers use, too.
    LayerActivations(BufferSet& buffers,
                     const Shapes& s,
                     const LayerRows& rows,
                     const at::Tensor& gate_up_M2I,
                     std::int64_t place,
                     std::int64_t next);
};

/// Memory that all layers share. Named for the most rows; of those with fewer the first are used.
struct LayerScratch {
    at::Tensor normed_MH;
    at::Tensor q_MQd;
    at::Tensor k_block_MKd;
    at::Tensor k_context_TKd;
    at::Tensor activation_MI;  // in the backward first its own gradient
    at::Tensor gate_up_M2I;    // of layers that make it again; undefined if none does
    at::Tensor normed_UH;
    at::Tensor qkv_UX;
};

/// Memory of the backward that all layers share.
struct BackwardScratch {
    at::Tensor dnormed_MH;  // sum dtype
    at::Tensor do_MQd;
    at::Tensor dq_MQd;
    at::Tensor dk_MKd;
    at::Tensor dk_context_TKd;
    at::Tensor dqkv_MX;
    at::Tensor dkv_context_TY;
    at::Tensor dnormed_UH;  // sum dtype
};

/// The gradients that run through the backward.
struct RunningGradients {
    at::Tensor dh_MH;          // sum dtype: of the layer's output, then of its input
    at::Tensor dcontext_TH;    // sum dtype: summed over all layers
    at::Tensor dh_rounded_MH;  // dh in the dtype of products, unless that is it
    at::Tensor dh_end_RH;      // sum dtype: dh of the last layer's output

    RunningGradients(BufferSet& buffers, const Shapes& s);
};

/// All of the memory that is used again and again while a row is worked on. Tensors that are never
/// in use together share it: what attention and the MLP need in a backward, and all of that with
/// the logits, which are gone before the backward begins.
struct RowScratch {
    enum class Use { Forward, Training };

    LayerScratch layer;
    BackwardScratch back;  // for training
    at::Tensor logits_CV;

    /// With logits of `chunk` rows, and with a gate_up if layers share it.
    RowScratch(BufferSet& buffers,
               const Shapes& s,
               std::int64_t chunk,
               Use use,
               bool shared_gate_up = false);

  private:
    void place(Overlay& memory, const Shapes& s, std::int64_t chunk, Use use, bool shared_gate_up);
};

/// What a layer reads besides its weights and its input.
struct LayerInputs {
    const at::Tensor& context_TH;
    const tensor::RotaryTable& block_rotary;    // [M]
    const tensor::RotaryTable& context_rotary;  // [T]
    AttentionMask mask;
    LayerRows rows;
    bool recompute_mlp = false;  ///< the backward makes gate_up again
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
                   const LayerRows& rows,
                   const tensor::RotaryTable& block_rotary,
                   tensor::RowOps& ops,
                   LayerActivations& a,
                   LayerScratch& scratch);

/// Last part: a.h_out of a.h_in and of what attention left in a.attention.o. Uses scratch.q up.
void finish_layer(const Shapes& s,
                  const LayerWeights& weights,
                  const LayerRows& rows,
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

/// dh of h_out (with `in.rows.block_E` dh_end, else dh; and dh_rounded) -> dh of h_in, unless that
/// is the embedding, which is frozen; adds to dcontext and to the layer's weight gradients.
void layer_backward(const Shapes& s,
                    const LayerWeights& weights,
                    const LayerWeights& gradients,
                    const LayerInputs& in,
                    BlockAttention& attention,
                    tensor::RowOps& ops,
                    const LayerActivations& a,
                    LayerScratch& scratch,
                    BackwardScratch& back,
                    RunningGradients& running);

}  // namespace dflash::model
