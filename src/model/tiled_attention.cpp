// SPDX-License-Identifier: Apache-2.0
// Work is cut into query tiles (consecutive blocks of one document) and, for each, key tiles.
// Inside a tile rows are (token, query head of the group), so that all heads of a group share one
// product with their key head, and sums over the group happen inside it. Anchors rise, so the
// blocks of a query tile that see a key tile are consecutive, and nearly all of them see all of it:
// only the others get a mask.
//
// n tokens of a query tile, R = n G rows, k keys of a key tile; see the header for the rest.
#include "growing_buffer.hpp"
#include "query_tiles.hpp"

#include <dflash/core/check.hpp>
#include <dflash/kernels/attention_schedule.hpp>
#include <dflash/model/tiled_attention.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

namespace dflash::model {
namespace {

/// On the CPU a tile of scores stays in the second-level cache; on a GPU it must be large against
/// the time of a launch.
std::int64_t default_tile_elements(at::Device device) {
    return device.is_cuda() ? std::int64_t{1} << 24 : std::int64_t{1} << 18;
}

/// out = a b per batch; P and dS, made in fp32, are rounded to the operands' dtype by the caller.
void product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b) {
    at::Tensor out = result;  // the out variants take a reference that they may change
    if (out.scalar_type() == a.scalar_type()) {
        at::bmm_out(out, a, b);
    } else if (out.device().is_cuda() && out.is_contiguous()) {
        at::bmm_out(out, a, b, out.scalar_type());
    } else if (out.device().is_cuda()) {
        out.copy_(at::bmm(a, b, out.scalar_type()));
    } else {
        at::bmm_out(out, a.to(out.scalar_type()), b.to(out.scalar_type()));
    }
}

void product_add(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
    if (out.scalar_type() == a.scalar_type()) {
        out.baddbmm_(a, b);
    } else if (out.device().is_cuda()) {
        out.add_(at::bmm(a, b, out.scalar_type()));
    } else {
        out.baddbmm_(a.to(out.scalar_type()), b.to(out.scalar_type()));
    }
}

/// [n, K G, d] as [K, n, G, d], a view.
at::Tensor by_key_head(const at::Tensor& x_nQd, std::int64_t K) {
    return x_nQd.unflatten(1, {K, x_nQd.size(1) / K}).transpose(0, 1);
}

}  // namespace

/// The blocks of the current row, on the host and on the device.
struct TiledAttention::Row {
    data::BlockPlan blocks;  // without head rows, labels and weights
    std::int64_t T = 0;
    at::Tensor anchor_M;    // int32, of the row's block
    at::Tensor position_M;  // int32, in the packed row
    at::Tensor keys_T;      // int32, 0 .. T-1

    std::int64_t num_rows() const { return blocks.num_blocks() * blocks.block_size; }
};

/// Memory and the products of one pass over one query tile.
struct TiledAttention::Scratch {
    GrowingBuffer scores, scores_rounded, dscores, dscores_rounded;
    GrowingBuffer q, d_o, o, k_block, v_block, sum, dk_block, dv_block, dk_context, dv_context;
    GrowingBuffer maximum, new_maximum, total, tile_total, delta, lse;
};

namespace {

/// What is fixed over one forward or backward.
struct Pass {
    std::int64_t K;
    std::int64_t G;
    std::int64_t d;
    at::TensorOptions compute;
    at::TensorOptions sum;
    // The scale 1/sqrt(d) goes into q where that loses nothing, else into the scores.
    double scale_q;
    double scale_scores;
    at::Tensor bias_B1B;  // of the own block: 0 or -inf; undefined if all is visible

    Pass(const AttentionInputs& in, const AttentionMask& mask, std::int64_t B)
        : K(in.k_block_MKd.size(1)),
          G(div_exact(in.q_MQd.size(1), K)),
          d(in.q_MQd.size(2)),
          compute(in.q_MQd.options()),
          sum(compute.dtype(tensor::sum_dtype(in.q_MQd.scalar_type()))) {
        const double scale = 1.0 / std::sqrt(static_cast<double>(d));
        const bool exact = compute.dtype() == sum.dtype();
        scale_q = exact ? scale : 1.0;
        scale_scores = exact ? 1.0 : scale;
        if (mask.causal || (mask.window > 0 && mask.window < B)) {
            const at::Tensor slot = at::arange(B, compute.dtype(at::kInt));
            const at::Tensor ahead = slot.unsqueeze(0) - slot.unsqueeze(1);  // key - query
            at::Tensor hidden = mask.causal ? ahead.gt(0) : at::zeros_like(ahead, at::kBool);
            if (mask.window > 0) {
                hidden = hidden.logical_or_(ahead.abs().ge(mask.window));
            }
            bias_B1B = at::zeros({B, B}, sum)
                           .masked_fill_(hidden, -std::numeric_limits<double>::infinity())
                           .unsqueeze(1);
        }
    }

    bool rounded() const { return compute.dtype() != sum.dtype(); }
};

/// Hides keys from the blocks of a key tile that do not see all of them.
void mask_scores(const at::Tensor& scores_KRk,
                 const KeyTile& keys,
                 std::int64_t first_block,
                 std::int64_t window,
                 std::int64_t B,
                 std::int64_t G,
                 const at::Tensor& anchor_M,
                 const at::Tensor& position_M,
                 const at::Tensor& keys_T) {
    const auto mask_blocks = [&](std::int64_t begin, std::int64_t end) {
        if (begin >= end) {
            return;
        }
        const std::int64_t token = (first_block + begin) * B;
        const std::int64_t n = (end - begin) * B;
        const at::Tensor key = keys_T.narrow(0, keys.begin, keys.count).unsqueeze(0);
        at::Tensor hidden = key.ge(anchor_M.narrow(0, token, n).unsqueeze(1));
        if (window > 0) {
            hidden.logical_or_(
                (position_M.narrow(0, token, n).unsqueeze(1) - key).ge_(window).to(at::kBool));
        }
        const at::Tensor bias = at::zeros({n, keys.count}, scores_KRk.options())
                                    .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
        scores_KRk.narrow(1, (begin - keys.seen_begin) * B * G, n * G)
            .unflatten(1, {n, G})
            .add_(bias.unsqueeze(1));
    };
    mask_blocks(keys.seen_begin, keys.full_begin);
    mask_blocks(keys.full_end, keys.seen_end);
}

/// A tensor in the dtype of the operands: itself, or rounded into `buffer`.
at::Tensor operand(const at::Tensor& values, const Pass& pass, GrowingBuffer& buffer) {
    if (!pass.rounded()) {
        return values;
    }
    return buffer.take(values.sizes(), pass.compute).copy_(values);
}

/// Finishes the scores of the own block.
void scale_and_bias(const at::Tensor& scores, const Pass& pass, std::int64_t B) {
    if (pass.scale_scores != 1.0) {
        scores.mul_(pass.scale_scores);
    }
    if (pass.bias_B1B.defined()) {
        scores.view({-1, B, pass.G, B}).add_(pass.bias_B1B);
    }
}

/// Scores of the rows [begin, begin + rows) of a query tile against a key tile, without mask.
at::Tensor context_scores(const AttentionInputs& in,
                          const at::Tensor& q_KRd,
                          const KeyTile& keys,
                          std::int64_t begin,
                          std::int64_t rows,
                          const Pass& pass,
                          GrowingBuffer& buffer) {
    at::Tensor scores = buffer.take({pass.K, rows, keys.count}, pass.sum);
    product(scores,
            q_KRd.narrow(1, begin, rows),
            in.k_context_TKd.narrow(0, keys.begin, keys.count).permute({1, 2, 0}));
    if (pass.scale_scores != 1.0) {
        scores.mul_(pass.scale_scores);
    }
    return scores;
}

}  // namespace

TiledAttention::TiledAttention(at::Device device, std::int64_t tile_elements)
    : device_(device),
      tile_elements_(tile_elements > 0 ? tile_elements : default_tile_elements(device)),
      row_(std::make_unique<Row>()),
      scratch_(std::make_unique<Scratch>()) {}

TiledAttention::~TiledAttention() = default;

std::int64_t TiledAttention::largest_tile(std::int64_t num_heads, std::int64_t block_size) const {
    return std::max(tile_elements_, num_heads * block_size * std::max(kMinKeys, block_size));
}

Bytes TiledAttention::scratch_bytes(std::int64_t num_heads,
                                    std::int64_t head_dim,
                                    std::int64_t block_size,
                                    std::int64_t num_blocks,
                                    Bytes element_size) const {
    const TileShape shape = tile_shape(tile_elements_, num_heads, block_size);
    const std::int64_t rows =
        std::min(shape.blocks, num_blocks) * block_size * num_heads;  // over all heads
    const Bytes sum_size = element_size == 8 ? 8 : 4;
    const Bytes rounded = element_size == sum_size ? 0 : element_size;
    // Scores and their gradient; q, dO, K, V of a tile; sums of dQ, dK, dV and of O; six numbers a
    // row. The masks of partly hidden tiles are one head's scores.
    return largest_tile(num_heads, block_size) * 2 * (sum_size + rounded + 4) +
           rows * head_dim * 4 * (element_size + sum_size) + rows * 8 * sum_size;
}

void TiledAttention::set_row(const data::BlockPlan& blocks, std::int64_t num_tokens) {
    Row& row = *row_;
    const std::vector<std::int32_t>& anchors = blocks.anchors;
    const std::vector<std::int32_t>& context_begin = blocks.context_begin;
    kernels::check_blocks(anchors, context_begin, num_tokens);
    row.blocks.block_size = blocks.block_size;
    row.blocks.anchors = anchors;
    row.blocks.context_begin = context_begin;
    row.T = num_tokens;
    std::vector<std::int32_t> anchor_M;
    std::vector<std::int32_t> position_M;
    for (const std::int32_t anchor : anchors) {
        for (std::int32_t k = 0; k < blocks.block_size; ++k) {
            anchor_M.push_back(anchor);
            position_M.push_back(anchor + k);
        }
    }
    row.anchor_M = tensor::upload(std::span<const std::int32_t>(anchor_M), device_);
    row.position_M = tensor::upload(std::span<const std::int32_t>(position_M), device_);
    row.keys_T = at::arange(num_tokens, at::TensorOptions(device_).dtype(at::kInt));
}

namespace {

/// Checks the shapes of a call.
void expect_inputs(const AttentionInputs& in, std::int64_t M, std::int64_t T) {
    const std::int64_t K = in.k_block_MKd.size(1);
    const std::int64_t d = in.q_MQd.size(2);
    tensor::expect_shape(in.q_MQd, {M, tensor::kAny, d}, "q");
    tensor::expect_shape(in.k_block_MKd, {M, K, d}, "k of the blocks");
    tensor::expect_shape(in.v_block_MKd, {M, K, d}, "v of the blocks");
    tensor::expect_shape(in.k_context_TKd, {T, K, d}, "k of the context");
    tensor::expect_shape(in.v_context_TKd, {T, K, d}, "v of the context");
}

}  // namespace

void TiledAttention::forward(const AttentionInputs& in,
                             const AttentionMask& mask,
                             const AttentionOutputs& out) {
    const Row& row = *row_;
    Scratch& scratch = *scratch_;
    expect_inputs(in, row.num_rows(), row.T);
    tensor::expect_shape(out.o_MQd, {in.q_MQd.size(0), in.q_MQd.size(1), in.q_MQd.size(2)}, "o");
    tensor::expect_shape(out.lse_MQ, {in.q_MQd.size(0), in.q_MQd.size(1)}, "log-sum-exp");
    const Pass pass(in, mask, row.blocks.block_size);
    const auto [B, K, G, d] = std::tuple(row.blocks.block_size, pass.K, pass.G, pass.d);

    for (const QueryTile& tile :
         query_tiles(row.blocks, mask.window, tile_shape(tile_elements_, K * G, B))) {
        const std::int64_t first = tile.first_block * B;
        const std::int64_t n = tile.num_blocks * B;
        const std::int64_t R = n * G;
        const std::int64_t batch = K * tile.num_blocks;
        at::Tensor q = scratch.q.take({K, R, d}, pass.compute);
        at::Tensor q_KnGd = q.view({K, n, G, d});
        at::mul_out(q_KnGd, by_key_head(in.q_MQd.narrow(0, first, n), K), pass.scale_q);
        const at::Tensor k_block = scratch.k_block.take({K, n, d}, pass.compute);
        const at::Tensor v_block = scratch.v_block.take({K, n, d}, pass.compute);
        k_block.copy_(in.k_block_MKd.narrow(0, first, n).transpose(0, 1));
        v_block.copy_(in.v_block_MKd.narrow(0, first, n).transpose(0, 1));
        at::Tensor maximum = scratch.maximum.take({K, R, 1}, pass.sum);
        at::Tensor total = scratch.total.take({K, R, 1}, pass.sum);
        const at::Tensor sum = scratch.sum.take({K, R, d}, pass.sum);

        // The own block first: every query sees itself, so the maximum is finite from here on.
        at::Tensor scores = scratch.scores.take({batch, B * G, B}, pass.sum);
        product(scores, q.view({batch, B * G, d}), k_block.view({batch, B, d}).transpose(1, 2));
        scale_and_bias(scores, pass, B);
        at::Tensor maximum_own = maximum.view({batch, B * G, 1});
        at::Tensor total_own = total.view({batch, B * G, 1});
        at::amax_out(maximum_own, scores, {-1}, /*keepdim=*/true);
        scores.sub_(maximum_own).exp_();
        at::sum_out(total_own, scores, at::IntArrayRef{-1}, /*keepdim=*/true);
        product(sum.view({batch, B * G, d}),
                operand(scores, pass, scratch.scores_rounded),
                v_block.view({batch, B, d}));

        for (const KeyTile& keys : tile.keys) {
            const std::int64_t begin = keys.seen_begin * B * G;
            const std::int64_t rows = (keys.seen_end - keys.seen_begin) * B * G;
            scores = context_scores(in, q, keys, begin, rows, pass, scratch.scores);
            mask_scores(scores,
                        keys,
                        tile.first_block,
                        mask.window,
                        B,
                        G,
                        row.anchor_M,
                        row.position_M,
                        row.keys_T);
            at::Tensor old_maximum = maximum.narrow(1, begin, rows);
            at::Tensor new_maximum = scratch.new_maximum.take({K, rows, 1}, pass.sum);
            at::amax_out(new_maximum, scores, {-1}, /*keepdim=*/true);
            at::maximum_out(new_maximum, new_maximum, old_maximum);
            scores.sub_(new_maximum).exp_();
            const at::Tensor shrink = old_maximum.sub_(new_maximum).exp_();
            at::Tensor tile_total = scratch.tile_total.take({K, rows, 1}, pass.sum);
            at::sum_out(tile_total, scores, at::IntArrayRef{-1}, /*keepdim=*/true);
            total.narrow(1, begin, rows).mul_(shrink).add_(tile_total);
            const at::Tensor seen_sum = sum.narrow(1, begin, rows);
            seen_sum.mul_(shrink);
            product_add(seen_sum,
                        operand(scores, pass, scratch.scores_rounded),
                        in.v_context_TKd.narrow(0, keys.begin, keys.count).transpose(0, 1));
            old_maximum.copy_(new_maximum);
        }
        sum.div_(total);
        const at::Tensor o = by_key_head(out.o_MQd.narrow(0, first, n), K);
        o.copy_(sum.view({K, n, G, d}));
        if (out.o_rest_MQd.defined()) {
            by_key_head(out.o_rest_MQd.narrow(0, first, n), K)
                .copy_(sum.view({K, n, G, d}).sub_(o));
        }
        const at::Tensor lse = total.log_().add_(maximum);
        out.lse_MQ.narrow(0, first, n)
            .unflatten(1, {K, G})
            .transpose(0, 1)
            .copy_(lse.view({K, n, G}));
    }
}

void TiledAttention::backward(const AttentionInputs& in,
                              const AttentionMask& mask,
                              const AttentionOutputs& result,
                              const at::Tensor& do_MQd,
                              const AttentionGradients& out) {
    const Row& row = *row_;
    Scratch& scratch = *scratch_;
    expect_inputs(in, row.num_rows(), row.T);
    const Pass pass(in, mask, row.blocks.block_size);
    const auto [B, K, G, d] = std::tuple(row.blocks.block_size, pass.K, pass.G, pass.d);
    // Many blocks add to each row of the context: sums are kept in fp32.
    const auto sum_of = [&](const at::Tensor& gradient, GrowingBuffer& buffer) {
        at::Tensor sum = gradient.scalar_type() == tensor::sum_dtype(gradient.scalar_type())
                             ? gradient
                             : buffer.take(gradient.sizes(), pass.sum);
        sum.zero_();
        return sum;
    };
    const at::Tensor dk_context_TKd = sum_of(out.dk_context_TKd, scratch.dk_context);
    const at::Tensor dv_context_TKd = sum_of(out.dv_context_TKd, scratch.dv_context);

    for (const QueryTile& tile :
         query_tiles(row.blocks, mask.window, tile_shape(tile_elements_, K * G, B))) {
        const std::int64_t first = tile.first_block * B;
        const std::int64_t n = tile.num_blocks * B;
        const std::int64_t R = n * G;
        const std::int64_t batch = K * tile.num_blocks;
        at::Tensor q = scratch.q.take({K, R, d}, pass.compute);
        at::Tensor q_KnGd = q.view({K, n, G, d});
        at::mul_out(q_KnGd, by_key_head(in.q_MQd.narrow(0, first, n), K), pass.scale_q);
        const at::Tensor d_o = scratch.d_o.take({K, R, d}, pass.compute);
        d_o.view({K, n, G, d}).copy_(by_key_head(do_MQd.narrow(0, first, n), K));
        const at::Tensor k_block = scratch.k_block.take({K, n, d}, pass.compute);
        const at::Tensor v_block = scratch.v_block.take({K, n, d}, pass.compute);
        k_block.copy_(in.k_block_MKd.narrow(0, first, n).transpose(0, 1));
        v_block.copy_(in.v_block_MKd.narrow(0, first, n).transpose(0, 1));
        const at::Tensor lse = scratch.lse.take({K, R, 1}, pass.sum);
        lse.view({K, n, G}).copy_(
            result.lse_MQ.narrow(0, first, n).unflatten(1, {K, G}).transpose(0, 1));
        // delta = sum over d of o dO, in fp32.
        const at::Tensor o = scratch.o.take({K, R, d}, pass.sum);
        o.view({K, n, G, d}).copy_(by_key_head(result.o_MQd.narrow(0, first, n), K));
        if (result.o_rest_MQd.defined()) {
            o.view({K, n, G, d}).add_(by_key_head(result.o_rest_MQd.narrow(0, first, n), K));
        }
        at::Tensor delta = scratch.delta.take({K, R, 1}, pass.sum);
        at::sum_out(delta, o.mul_(d_o), at::IntArrayRef{-1}, /*keepdim=*/true);

        // dS = P (dO V^T - delta), from the scores: left in `probabilities` is P, returned is dS.
        const auto score_gradient = [&](const at::Tensor& probabilities,
                                        const at::Tensor& d_o_rows,
                                        const at::Tensor& v_transposed,
                                        const at::Tensor& delta_rows) {
            const at::Tensor gradient = scratch.dscores.take(probabilities.sizes(), pass.sum);
            product(gradient, d_o_rows, v_transposed);
            gradient.sub_(delta_rows).mul_(probabilities);
            if (pass.scale_scores != 1.0) {
                gradient.mul_(pass.scale_scores);
            }
            return operand(gradient, pass, scratch.dscores_rounded);
        };

        const at::Tensor dq = scratch.sum.take({K, R, d}, pass.sum);
        at::Tensor scores = scratch.scores.take({batch, B * G, B}, pass.sum);
        const at::Tensor q_own = q.view({batch, B * G, d});
        const at::Tensor d_o_own = d_o.view({batch, B * G, d});
        const at::Tensor k_own = k_block.view({batch, B, d});
        product(scores, q_own, k_own.transpose(1, 2));
        scale_and_bias(scores, pass, B);
        scores.sub_(lse.view({batch, B * G, 1})).exp_();
        at::Tensor ds = score_gradient(scores,
                                       d_o_own,
                                       v_block.view({batch, B, d}).transpose(1, 2),
                                       delta.view({batch, B * G, 1}));
        product(dq.view({batch, B * G, d}), ds, k_own);
        const at::Tensor dk_block = scratch.dk_block.take({K, n, d}, pass.sum);
        const at::Tensor dv_block = scratch.dv_block.take({K, n, d}, pass.sum);
        product(dk_block.view({batch, B, d}), ds.transpose(1, 2), q_own);
        product(dv_block.view({batch, B, d}),
                operand(scores, pass, scratch.scores_rounded).transpose(1, 2),
                d_o_own);
        out.dk_block_MKd.narrow(0, first, n).copy_(dk_block.transpose(0, 1));
        out.dv_block_MKd.narrow(0, first, n).copy_(dv_block.transpose(0, 1));

        for (const KeyTile& keys : tile.keys) {
            const std::int64_t begin = keys.seen_begin * B * G;
            const std::int64_t rows = (keys.seen_end - keys.seen_begin) * B * G;
            const auto of_tile = [&](const at::Tensor& x_TKd) {
                return x_TKd.narrow(0, keys.begin, keys.count).transpose(0, 1);
            };
            scores = context_scores(in, q, keys, begin, rows, pass, scratch.scores);
            mask_scores(scores,
                        keys,
                        tile.first_block,
                        mask.window,
                        B,
                        G,
                        row.anchor_M,
                        row.position_M,
                        row.keys_T);
            scores.sub_(lse.narrow(1, begin, rows)).exp_();
            const at::Tensor d_o_seen = d_o.narrow(1, begin, rows);
            ds = score_gradient(scores,
                                d_o_seen,
                                of_tile(in.v_context_TKd).transpose(1, 2),
                                delta.narrow(1, begin, rows));
            product_add(dq.narrow(1, begin, rows), ds, of_tile(in.k_context_TKd));
            product_add(of_tile(dk_context_TKd), ds.transpose(1, 2), q.narrow(1, begin, rows));
            product_add(of_tile(dv_context_TKd),
                        operand(scores, pass, scratch.scores_rounded).transpose(1, 2),
                        d_o_seen);
        }
        at::Tensor dq_out = by_key_head(out.dq_MQd.narrow(0, first, n), K);
        if (dq_out.scalar_type() == dq.scalar_type()) {
            at::mul_out(dq_out, dq.view({K, n, G, d}), pass.scale_q);
        } else {
            dq_out.copy_(dq.mul_(pass.scale_q).view({K, n, G, d}));
        }
    }
    if (!dk_context_TKd.is_same(out.dk_context_TKd)) {
        out.dk_context_TKd.copy_(dk_context_TKd);
    }
    if (!dv_context_TKd.is_same(out.dv_context_TKd)) {
        out.dv_context_TKd.copy_(dv_context_TKd);
    }
}

}  // namespace dflash::model
