// SPDX-License-Identifier: Apache-2.0
// Attention of block rows to their own block and to the context before their anchor: exact, tiled,
// with an online softmax over key tiles, and a backward that makes the probabilities again from the
// log-sum-exp. The path of the CPU, and the oracle of other implementations.
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
// No tensor of queries x keys exists: the largest piece holds largest_tile() scores.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/data/packed_row.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <memory>

namespace dflash::model {

/// What differs between layers.
struct AttentionMask {
    bool causal = false;
    std::int64_t window = 0;
};

struct AttentionInputs {
    at::Tensor q_MQd;  ///< compute dtype, like all of these
    at::Tensor k_context_TKd;
    at::Tensor v_context_TKd;
    at::Tensor k_block_MKd;
    at::Tensor v_block_MKd;
};

/// Where the backward writes, in the shapes of the inputs. The context's are fp32 (fp64 for fp64
/// inputs), since many blocks add to each of its rows; the others that or the compute dtype. Views
/// are allowed.
struct AttentionGradients {
    at::Tensor dq_MQd;
    at::Tensor dk_context_TKd;
    at::Tensor dv_context_TKd;
    at::Tensor dk_block_MKd;
    at::Tensor dv_block_MKd;
};

/// Attention over the blocks of one packed row at a time. Keeps the row's tiles and scratch memory,
/// which only grows. Not thread-safe; asynchronous on the current stream. Work is done in a fixed
/// order without atomics, so results are the same every time.
class BlockAttention {
  public:
    /// `tile_elements` 0: the default of the device. Tests give small ones to have many tiles.
    explicit BlockAttention(at::Device device, std::int64_t tile_elements = 0);
    ~BlockAttention();

    /// Scores of the largest tile, over all heads: at most the number given, but never less than
    /// one block against kMinKeys keys.
    std::int64_t largest_tile(std::int64_t num_heads, std::int64_t block_size) const;

    /// Bytes of scratch memory, at most, for shapes of that size.
    Bytes scratch_bytes(std::int64_t num_heads,
                        std::int64_t head_dim,
                        std::int64_t block_size,
                        std::int64_t num_blocks,
                        Bytes element_size) const;

    /// Takes over the blocks of a row of `num_tokens` tokens. Internal error if the anchors are not
    /// grouped by document and rising.
    void set_row(const data::BlockPlan& blocks, std::int64_t num_tokens);

    /// o = softmax(q k^T / sqrt(d) + mask) v and the natural log-sum-exp of the scaled scores.
    /// o_MQd in the compute dtype, lse_MQ in fp32 (fp64 for fp64).
    void forward(const AttentionInputs& in,
                 const AttentionMask& mask,
                 const at::Tensor& o_MQd,
                 const at::Tensor& lse_MQ);

    /// Gradients of a forward with the same inputs and mask; overwrites `out`.
    void backward(const AttentionInputs& in,
                  const AttentionMask& mask,
                  const at::Tensor& o_MQd,
                  const at::Tensor& lse_MQ,
                  const at::Tensor& do_MQd,
                  const AttentionGradients& out);

    static constexpr std::int64_t kMinKeys = 16;

  private:
    struct Row;
    struct Scratch;
    at::Device device_;
    std::int64_t tile_elements_;
    std::unique_ptr<Row> row_;
    std::unique_ptr<Scratch> scratch_;
};

}  // namespace dflash::model
