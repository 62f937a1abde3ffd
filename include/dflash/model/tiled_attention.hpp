// SPDX-License-Identifier: Apache-2.0
// Attention in tiles of torch operations, with an online softmax over key tiles, and a backward
// that makes the probabilities again from the log-sum-exp. The path of the CPU, and the oracle of
// the kernels: training on a GPU never runs it.
//
// The largest piece holds largest_tile() scores.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/model/attention.hpp>

#include <memory>

namespace dflash::model {

/// Keeps the row's tiles and scratch memory, which only grows.
class TiledAttention final : public BlockAttention {
  public:
    /// `tile_elements` 0: the default of the device. Tests give small ones to have many tiles.
    explicit TiledAttention(at::Device device, std::int64_t tile_elements = 0);
    ~TiledAttention() override;

    /// Scores of the largest tile, over all heads: at most the number given, but never less than
    /// one block against kMinKeys keys.
    std::int64_t largest_tile(std::int64_t num_heads, std::int64_t block_size) const;

    /// Bytes of scratch memory, at most, for shapes of that size.
    Bytes scratch_bytes(std::int64_t num_heads,
                        std::int64_t head_dim,
                        std::int64_t block_size,
                        std::int64_t num_blocks,
                        Bytes element_size) const;

    void set_row(const data::BlockPlan& blocks, std::int64_t num_tokens) override;

    void forward(const AttentionInputs& in,
                 const AttentionMask& mask,
                 const AttentionOutputs& out) override;

    void backward(const AttentionInputs& in,
                  const AttentionMask& mask,
                  const AttentionOutputs& result,
                  const at::Tensor& do_MQd,
                  const AttentionGradients& out) override;

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
