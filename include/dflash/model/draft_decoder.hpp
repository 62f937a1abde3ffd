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

class BufferSet;

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

    /// The same for b = T / S tokens of every sequence, [K, S b, H], sequence by sequence. Leaves
    /// the lengths that the cache notes as they are (DraftCache::note_appended). In bf16 on CUDA
    /// with row_ops of kernels it can be captured into a graph: nothing in it waits for the device,
    /// or depends on the host, and what it allocates belongs to the capture.
    void append_blocks(DraftCache& cache, const DraftStep& step, const at::Tensor& features_KTH);

    /// Final-norm rows of slots 1 .. b - 1 of a block behind what each of `slots` (distinct) holds,
    /// [S (b - 1), H], sequence by sequence. `anchors` are the tokens of slots 0, at position
    /// cache.length(slot). 2 <= b <= config().block_size. The caches do not change.
    at::Tensor propose(DraftCache& cache,
                       std::span<const std::int32_t> slots,
                       std::span<const TokenId> anchors,
                       std::int64_t b);

    /// The same from the device, anchors int32 [S]; can be captured as append_blocks() can.
    at::Tensor propose(DraftCache& cache,
                       const DraftStep& step,
                       const at::Tensor& anchors_S,
                       std::int64_t b);

    /// Upper bound of what blocks of b of S sequences take on a GPU, to be proposed and to be
    /// appended: the memory of a graph of either, without what it gives.
    static Bytes block_bytes(const DraftConfig& config,
                             std::int64_t sequences,
                             std::int64_t b,
                             at::ScalarType dtype);

    /// Rows of propose() through the frozen head: logits in fp32 (fp64 for fp64), [R, V].
    at::Tensor logits(const at::Tensor& hidden_RH) const;

  private:
    struct State;
    struct StepRows;

    /// Keys and values of T context tokens into rows of the cache (both int64 [T]).
    void write_context(DraftCache& cache,
                       BufferSet& buffers,
                       const at::Tensor& features_KTH,
                       const at::Tensor& positions_T,
                       const at::Tensor& rows_T);

    DraftConfig config_;
    FrozenEnds ends_;
    DraftWeights weights_;
    std::shared_ptr<tensor::RowOps> row_ops_;
    std::unique_ptr<State> state_;
};

}  // namespace dflash::model
