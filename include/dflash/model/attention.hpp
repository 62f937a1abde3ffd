// SPDX-License-Identifier: Apache-2.0
// Attention of block rows to their own block and to the context before their anchor, forward and
// backward, exact.
//
// T context rows (tokens of the packed row), N blocks of B slots, M = N B query rows, Q query
// heads, K key heads, G = Q / K, d head size. Query head h reads key head h / G. Layout: [rows,
// heads, d], last dimension contiguous, other strides free.
//
// Query (n, k), at row position p = anchors[n] + k, sees with window w (0: none):
//   context row t    iff context_begin[n] <= t < anchors[n], and p - t < w if w > 0
//   slot j of block n iff j <= k if causal, and |k - j| < w if w > 0
// Nothing else. So every query sees at least itself, and empty contexts need no special case.
//
// No tensor of queries x keys ever exists.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/data/packed_row.hpp>

#include <ATen/ATen.h>
#include <cstdint>

namespace dflash::model {

/// What differs between layers.
struct AttentionMask {
    bool causal = false;
    std::int64_t window = 0;

    bool operator==(const AttentionMask&) const = default;
};

struct AttentionInputs {
    at::Tensor q_MQd;  ///< compute dtype, like all of these
    at::Tensor k_context_TKd;
    at::Tensor v_context_TKd;
    at::Tensor k_block_MKd;
    at::Tensor v_block_MKd;
};

/// What the forward leaves for the layer and for its own backward.
struct AttentionOutputs {
    at::Tensor o_MQd;       ///< compute dtype
    at::Tensor o_rest_MQd;  ///< what rounding o to bf16 left out, itself in bf16; undefined where o
                            ///< has the dtype of sums
    at::Tensor lse_MQ;      ///< fp32 (fp64 for fp64)
};

/// Where the backward writes, in the shapes and the dtype of the inputs; sums are made in fp32
/// (fp64 for fp64 inputs). Views are allowed.
struct AttentionGradients {
    at::Tensor dq_MQd;
    at::Tensor dk_context_TKd;
    at::Tensor dv_context_TKd;
    at::Tensor dk_block_MKd;
    at::Tensor dv_block_MKd;
};

/// Attention over the blocks of one packed row at a time. Not thread-safe; asynchronous on the
/// current stream. Work is done in a fixed order without atomics, so results are the same every
/// time.
class BlockAttention : NonCopyable {
  public:
    virtual ~BlockAttention() = default;

    /// Takes over the blocks of a row of `num_tokens` tokens. Internal error if the anchors are not
    /// grouped by document and rising.
    virtual void set_row(const data::BlockPlan& blocks, std::int64_t num_tokens) = 0;

    /// o = softmax(q k^T / sqrt(d) + mask) v and the natural log-sum-exp of the scaled scores.
    virtual void forward(const AttentionInputs& in,
                         const AttentionMask& mask,
                         const AttentionOutputs& out) = 0;

    /// Gradients of the forward that gave `result` with the same inputs and mask; overwrites `out`.
    virtual void backward(const AttentionInputs& in,
                          const AttentionMask& mask,
                          const AttentionOutputs& result,
                          const at::Tensor& do_MQd,
                          const AttentionGradients& out) = 0;
};

}  // namespace dflash::model
