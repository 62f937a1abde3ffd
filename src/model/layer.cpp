// SPDX-License-Identifier: Apache-2.0
#include "layer.hpp"

#include <fmt/format.h>
#include <utility>

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

/// The gradient of the rows at a layer's end.
struct EndGradient {
    at::Tensor dh_EH;       // sum dtype
    at::Tensor rounded_EH;  // in the dtype of products; the pass that wrote dh last has left it

    EndGradient(const Shapes& s, const LayerRows& rows, const RunningGradients& running)
        : dh_EH(rows.block_E.defined() ? running.dh_end_RH : running.dh_MH),
          rounded_EH(s.compute == s.sum ? dh_EH
                                        : running.dh_rounded_MH.narrow(0, 0, rows.num_ends(s))) {}

    /// What the backward of a norm leaves for the next products.
    tensor::NormByproducts byproducts(const at::Tensor& y_EH) const {
        return {.dx_rounded_RH = rounded_EH.is_same(dh_EH) ? nullptr : &rounded_EH, .y_RH = &y_EH};
    }
};

void mlp_backward(const Shapes& s,
                  const LayerWeights& weights,
                  const LayerWeights& gradients,
                  tensor::RowOps& ops,
                  const LayerActivations& a,
                  LayerScratch& scratch,
                  BackwardScratch& back,
                  const EndGradient& end,
                  bool recompute) {
    const std::int64_t E = end.dh_EH.size(0);
    const at::Tensor activation_EI = scratch.activation_MI.narrow(0, 0, E);
    const at::Tensor gate_EI = a.gate_up_E2I.narrow(1, 0, s.I);
    const at::Tensor up_EI = a.gate_up_E2I.narrow(1, s.I, s.I);
    const at::Tensor normed_EH = scratch.normed_MH.narrow(0, 0, E);
    const at::Tensor dnormed_EH = back.dnormed_MH.narrow(0, 0, E);
    if (recompute) {
        ops.rms_norm(normed_EH, a.h_mid_EH, weights.post_norm_H, s.eps, nullptr);
        ops.linear(a.gate_up_E2I, normed_EH, weights.gate_up_2IH);
    }
    // Gradients take the place of what they belong to.
    ops.linear_backward_input(activation_EI, /*add=*/false, end.rounded_EH, weights.down_HI);
    ops.swiglu_backward(gate_EI, up_EI, &activation_EI, activation_EI, gate_EI, up_EI);
    ops.linear_backward_weight(gradients.down_HI, end.rounded_EH, activation_EI);
    ops.linear_backward_input(dnormed_EH, /*add=*/false, a.gate_up_E2I, weights.gate_up_2IH);
    ops.rms_norm_backward(end.dh_EH,
                          /*add=*/true,
                          gradients.post_norm_H,
                          dnormed_EH,
                          a.h_mid_EH,
                          weights.post_norm_H,
                          a.inverse_rms_mid_E1,
                          end.byproducts(normed_EH));
    ops.linear_backward_weight(gradients.gate_up_2IH, a.gate_up_E2I, normed_EH);
}

/// Backward of the output projection: do of all block rows; dh of all of them, where the layer's
/// end has fewer.
void output_backward(const LayerWeights& weights,
                     const LayerWeights& gradients,
                     const LayerRows& rows,
                     tensor::RowOps& ops,
                     const LayerActivations& a,
                     LayerScratch& scratch,
                     BackwardScratch& back,
                     const EndGradient& end,
                     RunningGradients& running) {
    const at::Tensor o_MX = a.attention.o_MQd.flatten(1);
    if (!rows.block_E.defined()) {
        ops.linear_backward_input(
            back.do_MQd.flatten(1), /*add=*/false, end.rounded_EH, weights.o_HQd);
        ops.linear_backward_weight(gradients.o_HQd, end.rounded_EH, o_MX);
        return;
    }
    // q and dq are not needed yet.
    const std::int64_t E = end.dh_EH.size(0);
    at::Tensor o_EX = scratch.q_MQd.narrow(0, 0, E).flatten(1);
    const at::Tensor do_EX = back.dq_MQd.narrow(0, 0, E).flatten(1);
    at::index_select_out(o_EX, o_MX, 0, rows.block_E);
    ops.linear_backward_input(do_EX, /*add=*/false, end.rounded_EH, weights.o_HQd);
    ops.linear_backward_weight(gradients.o_HQd, end.rounded_EH, o_EX);
    back.do_MQd.flatten(1).zero_().index_copy_(0, rows.block_E, do_EX);
    running.dh_MH.zero_().index_copy_(0, rows.block_E, end.dh_EH);
}

/// Backward of the first layer's input. Block rows with the same embedding have the same input
/// norm and projection, so their gradients are summed before the products instead of after them.
void input_backward(const Shapes& s,
                    const LayerWeights& weights,
                    const LayerWeights& gradients,
                    tensor::RowOps& ops,
                    const LayerActivations& a,
                    LayerScratch& scratch,
                    BackwardScratch& back) {
    const at::Tensor dqkv_NBX = back.dqkv_MX.unflatten(0, {s.N, s.B});
    const at::Tensor& dqkv_UX = scratch.qkv_UX;
    dqkv_UX.narrow(0, 0, s.N).copy_(dqkv_NBX.select(1, 0));
    const at::Tensor masks_X =
        dqkv_NBX.narrow(1, 1, s.B - 1).sum(at::IntArrayRef{0, 1}, /*keepdim=*/false, s.sum);
    // The sum has more bits than the dtype of products: what rounding leaves out has a row too.
    dqkv_UX.select(0, s.N).copy_(masks_X);
    dqkv_UX.select(0, s.N + 1).copy_(masks_X - dqkv_UX.select(0, s.N));
    ops.linear_backward_input(back.dnormed_UH, /*add=*/false, dqkv_UX, weights.qkv_XH);
    ops.rms_norm_backward(back.dnormed_UH,
                          /*add=*/false,
                          gradients.input_norm_H,
                          back.dnormed_UH,
                          a.h_in_JH,
                          weights.input_norm_H,
                          a.inverse_rms_in_J1,
                          {.y_RH = &scratch.normed_UH});
    ops.linear_backward_weight(gradients.qkv_XH, dqkv_UX, scratch.normed_UH);
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
                                   const LayerRows& rows,
                                   const at::Tensor& gate_up_M2I,
                                   std::int64_t place,
                                   std::int64_t next) {
    const std::int64_t J = rows.num_inputs(s);
    const std::int64_t E = rows.num_ends(s);
    const auto take = [&](const char* name, at::IntArrayRef shape, at::ScalarType dtype) {
        return buffers.take(fmt::format("{}.{}", name, place), shape, dtype);
    };
    h_in_JH = take("h", {J, s.H}, s.compute);
    inverse_rms_in_J1 = take("inverse_rms_in", {J, 1}, s.sum);
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
    h_mid_EH = take("h_mid", {E, s.H}, s.compute);
    inverse_rms_mid_E1 = take("inverse_rms_mid", {E, 1}, s.sum);
    gate_up_E2I = gate_up_M2I.defined() ? gate_up_M2I.narrow(0, 0, E)
                                        : take("gate_up", {E, 2 * s.I}, s.compute);
    h_out_EH = buffers.take(fmt::format("h.{}", next), {E, s.H}, s.compute);
}

RunningGradients::RunningGradients(BufferSet& buffers, const Shapes& s)
    : dh_MH(buffers.take("dh", {s.M, s.H}, s.sum)),
      dcontext_TH(buffers.take("dcontext", {s.T, s.H}, s.sum)),
      dh_end_RH(buffers.take("dh_end", {s.R, s.H}, s.sum)) {
    if (s.compute != s.sum) {
        dh_rounded_MH = buffers.take("dh_rounded", {s.M, s.H}, s.compute);
    }
}

RowScratch::RowScratch(
    BufferSet& buffers, const Shapes& s, std::int64_t chunk, Use use, bool shared_gate_up) {
    Overlay count;
    place(count, s, chunk, use, shared_gate_up);
    Overlay memory(buffers.take("scratch", {count.bytes()}, at::kByte));
    place(memory, s, chunk, use, shared_gate_up);
}

void RowScratch::place(
    Overlay& memory, const Shapes& s, std::int64_t chunk, Use use, bool shared_gate_up) {
    const bool training = use == Use::Training;
    const std::int64_t X = (s.Q + 2 * s.K) * s.d;
    const auto projections = [&] {
        back.dqkv_MX = memory.take({s.M, X}, s.compute);
        back.dkv_context_TY = memory.take({s.T, 2 * s.K * s.d}, s.compute);
    };
    const auto heads = [&] {
        layer.q_MQd = memory.take({s.M, s.Q, s.d}, s.compute);
        layer.k_block_MKd = memory.take({s.M, s.K, s.d}, s.compute);
        layer.k_context_TKd = memory.take({s.T, s.K, s.d}, s.compute);
        if (training) {
            back.do_MQd = memory.take({s.M, s.Q, s.d}, s.compute);
            back.dq_MQd = memory.take({s.M, s.Q, s.d}, s.compute);
            back.dk_MKd = memory.take({s.M, s.K, s.d}, s.compute);
            back.dk_context_TKd = memory.take({s.T, s.K, s.d}, s.compute);
        }
    };
    const auto layers = [&] {
        // Gradients of projections begin when those of the MLP are done.
        memory.in_turn({[&] {
                            layer.activation_MI = memory.take({s.M, s.I}, s.compute);
                            if (shared_gate_up) {
                                layer.gate_up_M2I = memory.take({s.M, 2 * s.I}, s.compute);
                            }
                        },
                        [&] {
                            if (training) {
                                projections();
                            }
                        }});
        // dnormed is what the MLP's backward leaves before attention's begins, and again what is
        // made of the projections' gradients after it.
        memory.in_turn({heads, [&] {
                            if (training) {
                                back.dnormed_MH = memory.take({s.M, s.H}, s.sum);
                                back.dnormed_UH = memory.take({s.U, s.H}, s.sum);
                            }
                        }});
        layer.normed_MH = memory.take({s.M, s.H}, s.compute);
        layer.normed_UH = memory.take({s.U, s.H}, s.compute);
        layer.qkv_UX = memory.take({s.U, X}, s.compute);
    };
    const auto logits = [&] {
        const std::int64_t columns = (s.V + 7) / 8 * 8;
        logits_CV = memory.take({chunk, columns}, s.sum).narrow(1, 0, s.V);
    };
    memory.in_turn({layers, logits});
}

at::Tensor heads_of(const at::Tensor& joined,
                    std::int64_t first_head,
                    std::int64_t num_heads,
                    std::int64_t d) {
    return joined.narrow(1, first_head * d, num_heads * d).unflatten(1, {num_heads, d});
}

void project_block(const Shapes& s,
                   const LayerWeights& weights,
                   const LayerRows& rows,
                   const tensor::RotaryTable& block_rotary,
                   tensor::RowOps& ops,
                   LayerActivations& a,
                   LayerScratch& scratch) {
    const bool repeated = rows.source_M.defined();
    const at::Tensor& normed_JH = repeated ? scratch.normed_UH : scratch.normed_MH;
    ops.rms_norm(normed_JH, a.h_in_JH, weights.input_norm_H, s.eps, &a.inverse_rms_in_J1);
    ops.linear(repeated ? scratch.qkv_UX : a.qkv_MX, normed_JH, weights.qkv_XH);
    if (repeated) {
        at::index_select_out(a.qkv_MX, scratch.qkv_UX, 0, rows.source_M);
    }
    turn_block(s, weights, block_rotary, ops, a, scratch, /*keep=*/true);
}

void finish_layer(const Shapes& s,
                  const LayerWeights& weights,
                  const LayerRows& rows,
                  tensor::RowOps& ops,
                  LayerActivations& a,
                  LayerScratch& scratch) {
    const std::int64_t E = a.h_mid_EH.size(0);
    at::Tensor o_EX = a.attention.o_MQd.flatten(1);
    if (rows.block_E.defined()) {
        const at::Tensor o_MX = std::exchange(o_EX, scratch.q_MQd.narrow(0, 0, E).flatten(1));
        at::index_select_out(o_EX, o_MX, 0, rows.block_E);
    }
    if (rows.source_E.defined()) {
        at::index_select_out(a.h_mid_EH, a.h_in_JH, 0, rows.source_E);
        ops.linear_add(a.h_mid_EH, a.h_mid_EH, o_EX, weights.o_HQd);
    } else {
        ops.linear_add(a.h_mid_EH, a.h_in_JH, o_EX, weights.o_HQd);
    }

    const at::Tensor normed_EH = scratch.normed_MH.narrow(0, 0, E);
    const at::Tensor activation_EI = scratch.activation_MI.narrow(0, 0, E);
    ops.rms_norm(normed_EH, a.h_mid_EH, weights.post_norm_H, s.eps, &a.inverse_rms_mid_E1);
    ops.linear(a.gate_up_E2I, normed_EH, weights.gate_up_2IH);
    ops.swiglu(activation_EI, a.gate_up_E2I.narrow(1, 0, s.I), a.gate_up_E2I.narrow(1, s.I, s.I));
    ops.linear_add(a.h_out_EH, a.h_mid_EH, activation_EI, weights.down_HI);
}

void layer_forward(const Shapes& s,
                   const LayerWeights& weights,
                   const LayerInputs& in,
                   BlockAttention& attention,
                   tensor::RowOps& ops,
                   LayerActivations& a,
                   LayerScratch& scratch) {
    project_block(s, weights, in.rows, in.block_rotary, ops, a, scratch);
    // Context rows are already normed by hidden_norm; the layer's input norm is not for them.
    ops.linear(a.kv_context_TY, in.context_TH, weights.kv_YH);
    attention.forward(
        attention_inputs(s, weights, in, ops, a, scratch, /*keep=*/true), in.mask, a.attention);
    finish_layer(s, weights, in.rows, ops, a, scratch);
}

void layer_backward(const Shapes& s,
                    const LayerWeights& weights,
                    const LayerWeights& gradients,
                    const LayerInputs& in,
                    BlockAttention& attention,
                    tensor::RowOps& ops,
                    const LayerActivations& a,
                    LayerScratch& scratch,
                    BackwardScratch& back,
                    RunningGradients& running) {
    const EndGradient end(s, in.rows, running);
    mlp_backward(s, weights, gradients, ops, a, scratch, back, end, in.recompute_mlp);
    output_backward(weights, gradients, in.rows, ops, a, scratch, back, end, running);
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
    ops.linear_backward_input(
        running.dcontext_TH, /*add=*/true, back.dkv_context_TY, weights.kv_YH);
    if (in.rows.source_M.defined()) {
        input_backward(s, weights, gradients, ops, a, scratch, back);
        return;
    }
    ops.linear_backward_input(back.dnormed_MH, /*add=*/false, back.dqkv_MX, weights.qkv_XH);
    ops.rms_norm_backward(running.dh_MH,
                          /*add=*/true,
                          gradients.input_norm_H,
                          back.dnormed_MH,
                          a.h_in_JH,
                          weights.input_norm_H,
                          a.inverse_rms_in_J1,
                          {.dx_rounded_RH = s.compute == s.sum ? nullptr : &running.dh_rounded_MH,
                           .y_RH = &scratch.normed_MH});
    ops.linear_backward_weight(gradients.qkv_XH, back.dqkv_MX, scratch.normed_MH);
}

}  // namespace dflash::model
