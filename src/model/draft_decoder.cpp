// SPDX-License-Identifier: Apache-2.0
// S sequences of a step with b tokens or slots of a block each, T = S b; other letters: see
// shapes.hpp.
#include "buffer_set.hpp"
#include "cached_attention.hpp"
#include "layer.hpp"
#include "layer_input.hpp"
#include "shapes.hpp"

#include <dflash/core/check.hpp>
#include <dflash/model/draft_decoder.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/linear.hpp>

#include <c10/core/GradMode.h>
#include <utility>
#include <vector>

namespace dflash::model {
namespace {

at::Tensor upload(const std::vector<std::int64_t>& values, at::Device device) {
    return tensor::upload(std::span<const std::int64_t>(values), device);
}

void check_token(TokenId token, std::int64_t vocab_size) {
    DFLASH_CHECK(token >= 0 && token < vocab_size,
                 "token {} is outside the vocabulary of {}",
                 token,
                 vocab_size);
}

}  // namespace

struct DraftDecoder::State {
    at::Device device;
    at::ScalarType compute;
    BufferSet buffers;  // of append_context(), which may move; graphs hold addresses of their own
    std::vector<LayerWeights> layers;
    at::Tensor frequencies_F;

    State(const DraftConfig& config, const DraftWeights& weights)
        : device(weights.compute_flat().device()),
          compute(weights.compute_flat().scalar_type()),
          buffers(device) {
        const std::vector<float> frequencies =
            tensor::rotary_frequencies(config.rope_theta, config.head_dim);
        frequencies_F = tensor::upload(std::span<const float>(frequencies), device);
        for (std::int64_t i = 0; i < config.num_layers(); ++i) {
            layers.emplace_back(weights, weights.compute_flat(), i);
        }
    }

    Shapes shapes(const DraftConfig& config, std::int64_t tokens, std::int64_t blocks) const {
        return {config, tokens, blocks, /*head_rows=*/0, compute, tensor::sum_dtype(compute)};
    }
};

/// Where the blocks of a step lie: positions and rows of the cache, b for each sequence.
struct DraftDecoder::StepRows {
    at::Tensor begin_S;      // first row of each sequence's keys
    at::Tensor positions_T;  // int32
    at::Tensor rows_T;       // int64

    StepRows(const DraftCache& cache, const DraftStep& step, std::int64_t b) {
        const at::Tensor first_rows_S = step.slots_S * cache.rows_of_slot_;
        const at::Tensor positions_SB =
            step.lengths_S.unsqueeze(1) + at::arange(b, step.lengths_S.options()).unsqueeze(0);
        // Nobody writes all of its block into the row behind the slots, and reads the last rows.
        begin_S = first_rows_S.clamp_max(cache.num_rows() - b);
        rows_T = (first_rows_S.unsqueeze(1) + positions_SB)
                     .clamp_max(cache.num_rows() - 1)
                     .to(at::kLong)
                     .flatten();
        positions_T = positions_SB.flatten();
    }
};

DraftDecoder::DraftDecoder(DraftConfig config,
                           FrozenEnds ends,
                           DraftWeights weights,
                           std::shared_ptr<tensor::RowOps> row_ops)
    : config_(std::move(config)),
      ends_(std::move(ends)),
      weights_(std::move(weights)),
      row_ops_(std::move(row_ops)),
      state_(std::make_unique<State>(config_, weights_)) {
    for (const at::Tensor* end : {&ends_.embed_VH, &ends_.head_VH}) {
        tensor::expect_shape(*end, {config_.vocab_size, config_.hidden_size}, "embedding or head");
        tensor::expect_dtype(*end, state_->compute, "embedding or head");
    }
}

DraftDecoder::~DraftDecoder() = default;

std::unique_ptr<DraftCache> DraftDecoder::make_cache(std::int64_t slots,
                                                     std::int64_t capacity) const {
    return std::make_unique<DraftCache>(
        config_, slots, capacity, at::TensorOptions(state_->device).dtype(state_->compute));
}

void DraftDecoder::append_context(DraftCache& cache, const ContextExtension& input) {
    const c10::NoGradGuard no_grad;
    DFLASH_CHECK(input.starts.size() == input.slots.size() + 1 && input.starts.front() == 0,
                 "{} starts for {} sequences",
                 input.starts.size(),
                 input.slots.size());
    const std::int64_t tokens = input.starts.back();
    std::vector<std::int64_t> positions_and_rows(narrow<std::size_t>(2 * tokens));
    for (std::size_t i = 0; i < input.slots.size(); ++i) {
        const std::int64_t slot = input.slots[i];
        const std::int64_t old = cache.length(slot);
        const std::int64_t count = input.starts[i + 1] - input.starts[i];
        cache.note_appended(slot, count);
        for (std::int64_t t = 0; t < count; ++t) {
            const auto at = static_cast<std::size_t>(input.starts[i] + t);
            positions_and_rows[at] = old + t;
            positions_and_rows[static_cast<std::size_t>(tokens) + at] = cache.row(slot, old + t);
        }
    }
    if (tokens == 0) {
        return;
    }
    const at::Tensor integers = upload(positions_and_rows, state_->device);
    write_context(cache,
                  state_->buffers,
                  input.features_KTH,
                  integers.narrow(0, 0, tokens),
                  integers.narrow(0, tokens, tokens));
}

void DraftDecoder::append_blocks(DraftCache& cache,
                                 const DraftStep& step,
                                 const at::Tensor& features_KTH) {
    const c10::NoGradGuard no_grad;
    const StepRows blocks(cache, step, div_exact(features_KTH.size(1), step.slots_S.size(0)));
    BufferSet buffers(state_->device);
    write_context(cache, buffers, features_KTH, blocks.positions_T, blocks.rows_T);
}

void DraftDecoder::write_context(DraftCache& cache,
                                 BufferSet& buffers,
                                 const at::Tensor& features_KTH,
                                 const at::Tensor& positions_T,
                                 const at::Tensor& rows_T) {
    const Shapes s = state_->shapes(config_, positions_T.size(0), /*blocks=*/0);
    tensor::expect_shape(features_KTH, {config_.num_features(), s.T, s.H}, "features");
    tensor::expect_dtype(features_KTH, s.compute, "features");
    const tensor::RotaryTable rotary = tensor::rotary_table(positions_T, state_->frequencies_F);
    const at::Tensor context_TH = buffers.take("context", {s.T, s.H}, s.compute);
    fuse_features(*row_ops_,
                  features_KTH,
                  weights_.weight(weights_.index("fc.weight")),
                  weights_.weight(weights_.index("hidden_norm.weight")),
                  s.eps,
                  buffers.take("fused", {s.T, s.H}, s.sum),
                  context_TH,
                  /*inverse_rms_T1=*/nullptr);
    const at::Tensor kv_TY = buffers.take("kv", {s.T, 2 * s.K * s.d}, s.compute);
    const at::Tensor k_TKd = buffers.take("k", {s.T, s.K, s.d}, s.compute);
    for (std::size_t i = 0; i < state_->layers.size(); ++i) {
        const LayerWeights& weights = state_->layers[i];
        tensor::linear_out(kv_TY, context_TH, weights.kv_YH);
        row_ops_->head_norm(k_TKd,
                            heads_of(kv_TY, 0, s.K, s.d),
                            weights.k_norm_d,
                            s.eps,
                            rotary,
                            /*inverse_rms_RN1=*/nullptr);
        cache.keys_[i].index_copy_(0, rows_T, k_TKd);
        cache.values_[i].index_copy_(0, rows_T, heads_of(kv_TY, s.K, s.K, s.d));
    }
}

at::Tensor DraftDecoder::propose(DraftCache& cache,
                                 std::span<const std::int32_t> slots,
                                 std::span<const TokenId> anchors,
                                 std::int64_t b) {
    DFLASH_CHECK(
        slots.size() == anchors.size(), "{} slots, {} anchors", slots.size(), anchors.size());
    const auto count = std::ssize(slots);
    std::vector<std::int32_t> values(slots.begin(), slots.end());
    for (const std::int32_t slot : slots) {
        values.push_back(narrow<std::int32_t>(cache.length(slot)));
    }
    for (const TokenId anchor : anchors) {
        check_token(anchor, config_.vocab_size);
        values.push_back(anchor);
    }
    const at::Tensor integers =
        tensor::upload(std::span<const std::int32_t>(values), state_->device).view({3, count});
    return propose(cache, {integers[0], integers[1]}, integers[2], b);
}

at::Tensor DraftDecoder::propose(DraftCache& cache,
                                 const DraftStep& step,
                                 const at::Tensor& anchors_S,
                                 std::int64_t b) {
    const c10::NoGradGuard no_grad;
    DFLASH_CHECK(b >= 2 && b <= config_.block_size,
                 "blocks of {}, the drafter was made for {}",
                 b,
                 config_.block_size);
    Shapes s = state_->shapes(config_, /*tokens=*/0, step.slots_S.size(0));
    s.B = b;
    s.M = s.N * b;
    const StepRows blocks(cache, step, b);
    const tensor::RotaryTable rotary =
        tensor::rotary_table(blocks.positions_T, state_->frequencies_F);
    const CachedAttention attention(
        blocks.begin_S, step.lengths_S, b, cache.capacity() + b, state_->compute);

    BufferSet buffers(state_->device);
    embed_blocks(buffers.take("h.0", {s.M, s.H}, s.compute).view({s.N, s.B, s.H}),
                 ends_.embed_VH,
                 anchors_S,
                 config_.mask_token_id);
    RowScratch scratch(buffers, s, /*chunk=*/0, RowScratch::Use::Forward);
    const LayerRows all_rows;
    at::Tensor h_MH;
    for (std::int64_t i = 0; i < config_.num_layers(); ++i) {
        const auto layer = static_cast<std::size_t>(i);
        const LayerWeights& weights = state_->layers[layer];
        LayerActivations a(buffers, s, all_rows, /*gate_up_M2I=*/{}, i % 2, (i + 1) % 2);
        project_block(s, weights, all_rows, rotary, *row_ops_, a, scratch.layer);
        // Behind the context, where the rows of the next round will overwrite them.
        cache.keys_[layer].index_copy_(0, blocks.rows_T, scratch.layer.k_block_MKd);
        cache.values_[layer].index_copy_(0, blocks.rows_T, heads_of(a.qkv_MX, s.Q + s.K, s.K, s.d));
        attention.forward(a.attention.o_MQd,
                          scratch.layer.q_MQd,
                          cache.keys_[layer],
                          cache.values_[layer],
                          {config_.causal(i), config_.window(i)});
        finish_layer(s, weights, all_rows, *row_ops_, a, scratch.layer);
        h_MH = a.h_out_EH;
    }
    // Slot 0 predicts nothing.
    const at::Tensor drafted_RH =
        h_MH.view({s.N, s.B, s.H}).narrow(1, 1, b - 1).reshape({s.N * (b - 1), s.H});
    at::Tensor hidden_RH = at::empty_like(drafted_RH);
    row_ops_->rms_norm(hidden_RH,
                       drafted_RH,
                       weights_.weight(weights_.index("norm.weight")),
                       s.eps,
                       /*inverse_rms_R1=*/nullptr);
    return hidden_RH;
}

Bytes DraftDecoder::block_bytes(const DraftConfig& config,
                                std::int64_t sequences,
                                std::int64_t b,
                                at::ScalarType dtype) {
    const std::int64_t tokens = sequences * b;
    Shapes s(config, tokens, sequences, /*head_rows=*/0, dtype, tensor::sum_dtype(dtype));
    s.B = b;
    s.M = tokens;
    BufferSet buffers{at::Device(at::kMeta)};
    const RowScratch scratch(buffers, s, /*chunk=*/0, RowScratch::Use::Forward);
    for (std::int64_t place = 0; place < 2; ++place) {
        const LayerActivations a(buffers, s, {}, /*gate_up_M2I=*/{}, place, 1 - place);
    }
    const auto element = static_cast<Bytes>(c10::elementSize(dtype));
    // Features and what is made of them; what attention gives, and rotary tables.
    const Bytes context =
        tokens * ((config.num_features() + 2) * s.H + 3 * s.K * s.d) * element + tokens * s.H * 4;
    return buffers.bytes() + context + tokens * (s.Q * s.d * element + s.d * 8);
}

at::Tensor DraftDecoder::logits(const at::Tensor& hidden_RH) const {
    const c10::NoGradGuard no_grad;
    const at::Tensor logits_RV =
        at::empty({hidden_RH.size(0), config_.vocab_size},
                  hidden_RH.options().dtype(tensor::sum_dtype(state_->compute)));
    tensor::linear_out(logits_RV, hidden_RH, ends_.head_VH);
    return logits_RV;
}

}  // namespace dflash::model
