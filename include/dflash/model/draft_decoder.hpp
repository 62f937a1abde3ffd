// SPDX-License-Identifier: Apache-2.0
// Inference of a drafter over caches: features of new tokens become context, and blocks are
// proposed behind it. Gives what Drafter::hidden gives for the same blocks, up to rounding.
//
// S sequences, T new tokens of all of them, b slots of a block (slot 0 holds the anchor), K tapped
// layers, H hidden size.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/core/types.hpp>
#include <dflash/model/draft_cache.hpp>
#include <dflash/model/drafter.hpp>
#include <dflash/tensor/row_ops.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <memory>
#include <span>

namespace dflash::model {

/// New tokens of several sequences, each after what its slot holds.
struct ContextExtension {
    const at::Tensor& features_KTH;        ///< compute dtype
    std::span<const std::int32_t> starts;  // [S + 1] first token of each sequence and, last, T
    std::span<const std::int32_t> slots;   // [S] distinct
};

/// Not thread-safe: used by its worker only. CUDA work is asynchronous on the worker's current
/// Torch stream. In bf16 on CUDA attention is ATen's flash kernel, called by name; in fp32 its
/// memory-efficient one; on the CPU its tiled one: there is no other path.
class DraftDecoder : NonCopyable {
  public:
    /// Reads `weights` at every call, so it follows weights that are being trained. `row_ops` must
    /// serve device and dtype of the weights.
    DraftDecoder(DraftConfig config,
                 FrozenEnds ends,
                 DraftWeights weights,
                 std::shared_ptr<tensor::RowOps> row_ops);
    ~DraftDecoder();

    const DraftConfig& config() const { return config_; }

    std::unique_ptr<DraftCache> make_cache(std::int64_t slots, std::int64_t capacity) const;

    /// Fuses the features and appends keys and values of all layers. Internal error if a slot has
    /// no room for them.
    void append_context(DraftCache& cache, const ContextExtension& input);

    /// Final-norm rows of slots 1 .. b - 1 of a block behind what each of `slots` (distinct) holds,
    /// [S (b - 1), H], sequence by sequence. `anchors` are the tokens of slots 0, at position
    /// cache.length(slot). 2 <= b <= config().block_size. The caches do not change. Valid until the
    /// next call.
    at::Tensor propose(DraftCache& cache,
                       std::span<const std::int32_t> slots,
                       std::span<const TokenId> anchors,
                       std::int64_t b);

    /// Rows of propose() through the frozen head: logits in fp32 (fp64 for fp64), [R, V].
    at::Tensor logits(const at::Tensor& hidden_RH) const;

  private:
    struct State;
    DraftConfig config_;
    FrozenEnds ends_;
    DraftWeights weights_;
    std::shared_ptr<tensor::RowOps> row_ops_;
    std::unique_ptr<State> state_;
};

}  // namespace dflash::model
