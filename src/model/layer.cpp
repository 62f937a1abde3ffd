// SPDX-License-Identifier: Apache-2.0
#include "layer.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace dflash::model {
namespace {

/// Queries and keys of the block as attention reads them, out of the projections: per-head norm,
/// then rotation. The forward keeps the norms' factors; the backward makes the same again.
void turn_block(const Shapes& s,
                const LayerWeights& weights,
                const tensor::RotaryTable& block_rotary,
                tensor::RowOps& ops,
                const LayerActivations& a,
                LayerScratch& scratch,
                bool keep) {
    ops.head_norm(scratch.q_MQd,
                  heads_of(a.qkv_MX, 0, s.Q, s.d),
                  weights.q_norm_d,
                  s.eps,
                  block_rotary,
                  keep ? &a.inverse_rms_q_MQ1 : nullptr);
    ops.head_norm(scratch.k_block_MKd,
                  heads_of(a.qkv_MX, s.Q, s.K, s.d),
                  weights.k_norm_d,
                  s.eps,
                  block_rotary,
                  keep ? &a.inverse_rms_k_MK1 : nullptr);
}

/// The same for the context's keys; then all that attention reads.
AttentionInputs attention_inputs(const Shapes& s,
                                 const LayerWeights& weights,
                                 const LayerInputs& in,
                                 tensor::RowOps& ops,
                                 const LayerActivations& a,
                                 LayerScratch& scratch,
                                 bool keep) {
    ops.head_norm(scratch.k_context_TKd,
                  heads_of(a.kv_context_TY, 0, s.K, s.d),
                  weights.k_norm_d,
                  s.eps,
                  in.context_rotary,
                  keep ? &a.inverse_rms_k_context_TK1 : nullptr);
    return {.q_MQd = scratch.q_MQd,
            .k_context_TKd = scratch.k_context_TKd,
            .v_context_TKd = heads_of(a.kv_context_TY, s.K, s.K, s.d),
            .k_block_MKd = scratch.k_block_MKd,
            .v_block_MKd = heads_of(a.qkv_MX, s.Q + s.K, s.K, s.d)};
}

/// dh in the dtype of products, which the pass that wrote dh last has left.
const at::Tensor& rounded_dh(const Shapes& s, const BackwardScratch& back) {
    return s.compute == s.sum ? back.dh_MH : back.dh_rounded_MH;
}

/// What the backward of a norm leaves for the next products.
tensor::NormByproducts byproducts(const Shapes& s,
                                  const LayerScratch& scratch,
                                  const BackwardScratch& back) {
    return {.dx_rounded_RH = s.compute == s.sum ? nullptr : &back.dh_rounded_MH,
            .y_RH = &scratch.normed_MH};
}

void mlp_backward(const Shapes& s,
                  const LayerWeights& weights,
                  const LayerWeights& gradients,
                  tensor::RowOps& ops,
                  const LayerActivations& a,
                  LayerScratch& scratch,
                  BackwardScratch& back) {
    const at::Tensor& dh = rounded_dh(s, back);
    ops.linear_backward_input(back.dactivation_MI, /*add=*/false, dh, weights.down_HI);
    ops.swiglu_backward(back.dgate_up_M2I.narrow(1, 0, s.I),
                        back.dgate_up_M2I.narrow(1, s.I, s.I),
                        &scratch.activation_MI,
                        back.dactivation_MI,
                        a.gate_up_M2I.narrow(1, 0, s.I),
                        a.gate_up_M2I.narrow(1, s.I, s.I));
    ops.linear_backward_weight(gradients.down_HI, dh, scratch.activation_MI);
    ops.linear_backward_input(
        back.dnormed_MH, /*add=*/false, back.dgate_up_M2I, weights.gate_up_2IH);
    ops.rms_norm_backward(back.dh_MH,
                          /*add=*/true,
                          gradients.post_norm_H,
                          back.dnormed_MH,
                          a.h_mid_MH,
                          weights.post_norm_H,
                          a.inverse_rms_mid_M1,
                          byproducts(s, scratch, back));
    ops.linear_backward_weight(gradients.gate_up_2IH, back.dgate_up_M2I, scratch.normed_MH);
}

}  // namespace

LayerWeights::LayerWeights(const DraftWeights& weights,
                           const at::Tensor& flat,
                           std::int64_t layer) {
    const auto index = [&](const char* name) {
        return weights.index(fmt::format("layers.{}.{}.weight", layer, name));
    };
    input_norm_H = weights.view_in(flat, index("input_layernorm"));
    qkv_XH = weights.joined_in(flat, index("self_attn.q_proj"), 3);
    kv_YH = weights.joined_in(flat, index("self_attn.k_proj"), 2);
    o_HQd = weights.view_in(flat, index("self_attn.o_proj"));
    q_norm_d = weights.view_in(flat, index("self_attn.q_norm"));
    k_norm_d = weights.view_in(flat, index("self_attn.k_norm"));
    post_norm_H = weights.view_in(flat, index("post_attention_layernorm"));
    gate_up_2IH = weights.joined_in(flat, index("mlp.gate_proj"), 2);
    down_HI = weights.view_in(flat, index("mlp.down_proj"));
}

LayerActivations::LayerActivations(BufferSet& buffers,
                                   const Shapes& s,
                                   std::int64_t place,
                                   std::int64_t next) {
    const auto take = [&](const char* name, at::IntArrayRef shape, at::ScalarType dtype) {
        return buffers.take(fmt::format("{}.{}", name, place), shape, dtype);
    };
    h_in_MH = take("h", {s.M, s.H}, s.compute);
    inverse_rms_in_M1 = take("inverse_rms_in", {s.M, 1}, s.sum);
    qkv_MX = take("qkv", {s.M, (s.Q + 2 * s.K) * s.d}, s.compute);
    kv_context_TY = take("kv_context", {s.T, 2 * s.K * s.d}, s.compute);
    inverse_rms_q_MQ1 = take("inverse_rms_q", {s.M, s.Q, 1}, s.sum);
    inverse_rms_k_MK1 = take("inverse_rms_k", {s.M, s.K, 1}, s.sum);
    inverse_rms_k_context_TK1 = take("inverse_rms_k_context", {s.T, s.K, 1}, s.sum);
    attention.o_MQd = take("o", {s.M, s.Q, s.d}, s.compute);
    if (s.compute != s.sum) {
        attention.o_rest_MQd = take("o_rest", {s.M, s.Q, s.d}, s.compute);
    }
    attention.lse_MQ = take("lse", {s.M, s.Q}, s.sum);
    h_mid_MH = take("h_mid", {s.M, s.H}, s.compute);
    inverse_rms_mid_M1 = take("inverse_rms_mid", {s.M, 1}, s.sum);
    gate_up_M2I = take("gate_up", {s.M, 2 * s.I}, s.compute);
    h_out_MH = buffers.take(fmt::format("h.{}", next), {s.M, s.H}, s.compute);
}

LayerScratch::LayerScratch(BufferSet& buffers, const Shapes& s)
    : normed_MH(buffers.take("normed", {s.M, s.H}, s.compute)),
      q_MQd(buffers.take("q", {s.M, s.Q, s.d}, s.compute)),
      k_block_MKd(buffers.take("k_block", {s.M, s.K, s.d}, s.compute)),
      k_context_TKd(buffers.take("k_context", {s.T, s.K, s.d}, s.compute)),
      activation_MI(buffers.take("activation", {s.M, s.I}, s.compute)) {}

BackwardScratch::BackwardScratch(BufferSet& buffers, const Shapes& s)
    : dh_MH(buffers.take("dh", {s.M, s.H}, s.sum)),
      dcontext_TH(buffers.take("dcontext", {s.T, s.H}, s.sum)),
      dnormed_MH(buffers.take("dnormed", {s.M, s.H}, s.sum)),
      dactivation_MI(buffers.take("dactivation", {s.M, s.I}, s.compute)),
      dgate_up_M2I(buffers.take("dgate_up", {s.M, 2 * s.I}, s.compute)),
      do_MQd(buffers.take("do", {s.M, s.Q, s.d}, s.compute)),
      dq_MQd(buffers.take("dq", {s.M, s.Q, s.d}, s.compute)),
      dk_MKd(buffers.take("dk", {s.M, s.K, s.d}, s.compute)),
      dk_context_TKd(buffers.take("dk_context", {s.T, s.K, s.d}, s.compute)),
      dqkv_MX(buffers.take("dqkv", {s.M, (s.Q + 2 * s.K) * s.d}, s.compute)),
      dkv_context_TY(buffers.take("dkv_context", {s.T, 2 * s.K * s.d}, s.compute)) {
    if (s.compute != s.sum) {
        dh_rounded_MH = buffers.take("dh_rounded", {s.M, s.H}, s.compute);
    }
}

at::Tensor heads_of(const at::Tensor& joined,
                    std::int64_t first_head,
                    std::int64_t num_heads,
                    std::int64_t d) {
    return joined.narrow(1, first_head * d, num_heads * d).unflatten(1, {num_heads, d});
}

void project_block(const Shapes& s,
                   const LayerWeights& weights,
                   const tensor::RotaryTable& block_rotary,
                   tensor::RowOps& ops,
                   LayerActivations& a,
                   LayerScratch& scratch) {
    ops.rms_norm(scratch.normed_MH, a.h_in_MH, weights.input_norm_H, s.eps, &a.inverse_rms_in_M1);
    ops.linear(a.qkv_MX, scratch.normed_MH, weights.qkv_XH);
    turn_block(s, weights, block_rotary, ops, a, scratch, /*keep=*/true);
}

void finish_layer(const Shapes& s,
                  const LayerWeights& weights,
                  tensor::RowOps& ops,
                  LayerActivations& a,
                  LayerScratch& scratch) {
    ops.linear_add(a.h_mid_MH, a.h_in_MH, a.attention.o_MQd.flatten(1), weights.o_HQd);

    ops.rms_norm(scratch.normed_MH, a.h_mid_MH, weights.post_norm_H, s.eps, &a.inverse_rms_mid_M1);
    ops.linear(a.gate_up_M2I, scratch.normed_MH, weights.gate_up_2IH);
    ops.swiglu(
        scratch.activation_MI, a.gate_up_M2I.narrow(1, 0, s.I), a.gate_up_M2I.narrow(1, s.I, s.I));
    ops.linear_add(a.h_out_MH, a.h_mid_MH, scratch.activation_MI, weights.down_HI);
}

void layer_forward(const Shapes& s,
                   const LayerWeights& weights,
                   const LayerInputs& in,
                   BlockAttention& attention,
                   tensor::RowOps& ops,
                   LayerActivations& a,
                   LayerScratch& scratch) {
    project_block(s, weights, in.block_rotary, ops, a, scratch);
    // Context rows are already normed by hidden_norm; the layer's input norm is not for them.
    ops.linear(a.kv_context_TY, in.context_TH, weights.kv_YH);
    attention.forward(
        attention_inputs(s, weights, in, ops, a, scratch, /*keep=*/true), in.mask, a.attention);
    finish_layer(s, weights, ops, a, scratch);
}

void layer_backward(const Shapes& s,
                    const LayerWeights& weights,
                    const LayerWeights& gradients,
                    const LayerInputs& in,
                    BlockAttention& attention,
                    tensor::RowOps& ops,
                    const LayerActivations& a,
                    LayerScratch& scratch,
                    BackwardScratch& back) {
    mlp_backward(s, weights, gradients, ops, a, scratch, back);

    const at::Tensor& dh = rounded_dh(s, back);
    ops.linear_backward_input(back.do_MQd.flatten(1), /*add=*/false, dh, weights.o_HQd);
    ops.linear_backward_weight(gradients.o_HQd, dh, a.attention.o_MQd.flatten(1));
    turn_block(s, weights, in.block_rotary, ops, a, scratch, /*keep=*/false);
    attention.backward(attention_inputs(s, weights, in, ops, a, scratch, /*keep=*/false),
                       in.mask,
                       a.attention,
                       back.do_MQd,
                       {.dq_MQd = back.dq_MQd,
                        .dk_context_TKd = back.dk_context_TKd,
                        .dv_context_TKd = heads_of(back.dkv_context_TY, s.K, s.K, s.d),
                        .dk_block_MKd = back.dk_MKd,
                        .dv_block_MKd = heads_of(back.dqkv_MX, s.Q + s.K, s.K, s.d)});
    ops.head_norm_backward(heads_of(back.dqkv_MX, 0, s.Q, s.d),
                           gradients.q_norm_d,
                           back.dq_MQd,
                           heads_of(a.qkv_MX, 0, s.Q, s.d),
                           weights.q_norm_d,
                           a.inverse_rms_q_MQ1,
                           in.block_rotary);
    ops.head_norm_backward(heads_of(back.dqkv_MX, s.Q, s.K, s.d),
                           gradients.k_norm_d,
                           back.dk_MKd,
                           heads_of(a.qkv_MX, s.Q, s.K, s.d),
                           weights.k_norm_d,
                           a.inverse_rms_k_MK1,
                           in.block_rotary);
    ops.head_norm_backward(heads_of(back.dkv_context_TY, 0, s.K, s.d),
                           gradients.k_norm_d,
                           back.dk_context_TKd,
                           heads_of(a.kv_context_TY, 0, s.K, s.d),
                           weights.k_norm_d,
                           a.inverse_rms_k_context_TK1,
                           in.context_rotary);

    ops.linear_backward_weight(gradients.kv_YH, back.dkv_context_TY, in.context_TH);
    ops.linear_backward_input(back.dcontext_TH, /*add=*/true, back.dkv_context_TY, weights.kv_YH);
    ops.linear_backward_input(back.dnormed_MH, /*add=*/false, back.dqkv_MX, weights.qkv_XH);
    ops.rms_norm_backward(back.dh_MH,
                          /*add=*/true,
                          gradients.input_norm_H,
                          back.dnormed_MH,
                          a.h_in_MH,
                          weights.input_norm_H,
                          a.inverse_rms_in_M1,
                          byproducts(s, scratch, back));
    ops.linear_backward_weight(gradients.qkv_XH, back.dqkv_MX, scratch.normed_MH);
}

}  // namespace dflash::model
