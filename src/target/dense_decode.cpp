// SPDX-License-Identifier: Apache-2.0
// The dense decoders over new tokens of cached sequences.
//
// Legend: T new tokens, S sequences, B new tokens of each, R rows of the cache, H hidden size, N
// query heads, G key/value heads, D head size, Q = N x D.
#include "dense_target.hpp"

#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <vector>

namespace dflash::target {
namespace {

void check_extension(const DenseCache& cache, const Extension& input, std::int64_t vocab_size) {
    DFLASH_CHECK(input.starts.size() == input.slots.size() + 1 && input.starts.front() == 0 &&
                     static_cast<std::size_t>(input.starts.back()) == input.tokens.size(),
                 "starts of {} sequences must go from 0 to the number of tokens, {}",
                 input.slots.size(),
                 input.tokens.size());
    std::vector<bool> seen(static_cast<std::size_t>(cache.slots()));
    for (std::size_t s = 0; s < input.slots.size(); ++s) {
        const std::int32_t slot = input.slots[s];
        const std::int64_t count = input.starts[s + 1] - input.starts[s];
        DFLASH_CHECK(count >= 0, "sequence {} has {} tokens", s, count);
        DFLASH_CHECK(cache.length(slot) + count <= cache.capacity(),
                     "slot {} holds {} of {} tokens, {} more",
                     slot,
                     cache.length(slot),
                     cache.capacity(),
                     count);
        DFLASH_CHECK(!seen[static_cast<std::size_t>(slot)], "slot {} is there twice", slot);
        seen[static_cast<std::size_t>(slot)] = true;
    }
    for (std::size_t i = 0; i < input.tokens.size(); ++i) {
        DFLASH_CHECK(input.tokens[i] >= 0 && input.tokens[i] < vocab_size,
                     "token {} at {} is outside the vocabulary of {}",
                     input.tokens[i],
                     i,
                     vocab_size);
    }
}

}  // namespace

std::unique_ptr<DecodeCache> DenseTarget::make_cache(std::int64_t slots,
                                                     std::int64_t capacity) const {
    return std::make_unique<DenseCache>(slots,
                                        capacity,
                                        static_cast<std::int64_t>(weights_.layers.size()),
                                        config_.num_kv_heads,
                                        config_.head_dim,
                                        weights_.embed_VH.options());
}

DenseCache& DenseTarget::own(DecodeCache& cache) const {
    auto* dense = dynamic_cast<DenseCache*>(&cache);
    DFLASH_CHECK(dense != nullptr && dense->num_layers() == weights_.layers.size(),
                 "a cache of another target");
    return *dense;
}

void DenseTarget::run_cached(DenseCache& cache,
                             const Buffers& buffers,
                             const at::Tensor& residual_TH,
                             const at::Tensor& positions_T,
                             const at::Tensor& rows_T,
                             const CachedLayout& layout,
                             const std::function<void(std::int64_t layer)>& after_layer) {
    const tensor::RotaryTable rotary =
        tensor::rotary_table(positions_T, frequencies_F_, rope_.attention_factor);
    for (std::size_t l = 0; l < weights_.layers.size(); ++l) {
        at::Tensor keys_RGD = cache.keys_RGD(l);
        at::Tensor values_RGD = cache.values_RGD(l);
        attention_block(
            weights_.layers[l],
            buffers,
            residual_TH,
            rotary,
            [&](const at::Tensor& q_TND, const at::Tensor& k_TGD, const at::Tensor& v_TGD) {
                keys_RGD.index_copy_(0, rows_T, k_TGD);
                values_RGD.index_copy_(0, rows_T, v_TGD);
                return cached_causal_attention(q_TND, keys_RGD, values_RGD, layout);
            });
        mlp_block(weights_.layers[l], buffers, residual_TH);
        after_layer(static_cast<std::int64_t>(l));
    }
}

at::Tensor DenseTarget::extend(DecodeCache& cache,
                               const Extension& input,
                               std::span<const std::int64_t> taps,
                               const FeatureSink& sink) {
    DenseCache& dense = own(cache);
    check_extension(dense, input, config_.vocab_size);
    const std::vector<std::int64_t> sorted = sorted_taps(taps);
    const auto tokens = static_cast<std::int64_t>(input.tokens.size());
    const at::Device device = weights_.embed_VH.device();
    reserve(tokens);
    at::Tensor residual_TH = buffers_.residual_TH.narrow(0, 0, tokens);
    const auto sink_if_tapped = [&](std::int64_t layer) {
        if (std::binary_search(sorted.begin(), sorted.end(), layer)) {
            sink(layer, residual_TH);
        }
    };
    if (tokens == 0) {
        for (const std::int64_t layer : sorted) {
            sink(layer, residual_TH);
        }
        return residual_TH;
    }

    CachedLayout layout;
    layout.query_starts.assign(input.starts.begin(), input.starts.end());
    std::vector<std::int32_t> positions;
    std::vector<std::int64_t> rows;
    for (std::size_t s = 0; s < input.slots.size(); ++s) {
        const std::int64_t held = dense.length(input.slots[s]);
        const std::int64_t first_row = input.slots[s] * dense.capacity();
        const std::int64_t count = input.starts[s + 1] - input.starts[s];
        for (std::int64_t i = held; i < held + count; ++i) {
            positions.push_back(static_cast<std::int32_t>(i));
            rows.push_back(first_row + i);
        }
        layout.key_starts.push_back(narrow<std::int32_t>(first_row));
        layout.key_counts.push_back(static_cast<std::int32_t>(held + count));
        layout.most_queries = std::max(layout.most_queries, count);
        layout.most_keys = std::max(layout.most_keys, held + count);
    }
    layout.upload(device);
    at::index_select_out(residual_TH, weights_.embed_VH, 0, tensor::upload(input.tokens, device));
    run_cached(dense,
               buffers_,
               residual_TH,
               tensor::upload(std::span<const std::int32_t>(positions), device),
               tensor::upload(std::span<const std::int64_t>(rows), device),
               layout,
               sink_if_tapped);
    for (std::size_t s = 0; s < input.slots.size(); ++s) {
        dense.note_appended(input.slots[s], input.starts[s + 1] - input.starts[s]);
    }
    return residual_TH;
}

at::Tensor DenseTarget::decode(DecodeCache& cache, const DecodeStep& step) {
    DenseCache& dense = own(cache);
    const std::int64_t sequences = step.slots_S.size(0);
    const std::int64_t tokens = step.tokens_T.size(0);
    const std::int64_t block = div_exact(tokens, sequences);
    DFLASH_CHECK(block >= 1 && block <= dense.capacity(),
                 "{} tokens of {} sequences in slots of {}",
                 tokens,
                 sequences,
                 dense.capacity());
    const std::vector<std::int64_t> sorted = sorted_taps(step.taps);
    // Buffers of its own: those of extend() may move when a longer row comes, and a graph holds
    // addresses.
    const Buffers buffers = make_buffers(tokens);
    const at::TensorOptions int32 = step.slots_S.options();
    const at::Tensor first_rows_S = step.slots_S * dense.capacity();
    const at::Tensor positions_SB =
        step.lengths_S.unsqueeze(1) + at::arange(block, int32).unsqueeze(0);
    // Nobody writes all of its tokens into the row behind the slots, and reads the last rows.
    const std::int64_t last_row = dense.slots() * dense.capacity();
    const at::Tensor rows_SB =
        (first_rows_S.unsqueeze(1) + positions_SB).clamp_max(last_row).to(at::kLong);

    CachedLayout layout;
    layout.device_query_starts = at::arange(0, tokens + 1, block, int32);
    layout.device_key_starts =
        at::constant_pad_nd(first_rows_S.clamp_max(last_row + 1 - block), {0, 1});
    layout.device_key_counts = step.lengths_S + block;
    layout.most_queries = block;
    layout.most_keys = dense.capacity();
    if (!attends_without_host(buffers.residual_TH)) {
        layout.download();
    }
    at::Tensor residual_TH = buffers.residual_TH;
    at::index_select_out(residual_TH, weights_.embed_VH, 0, step.tokens_T);
    run_cached(dense,
               buffers,
               residual_TH,
               positions_SB.flatten(),
               rows_SB.flatten(),
               layout,
               [&](std::int64_t layer) {
                   if (std::binary_search(sorted.begin(), sorted.end(), layer)) {
                       step.sink(layer, residual_TH);
                   }
               });
    return residual_TH;
}

bool decodes_without_host(const TargetModel& model) {
    return attends_without_host(model.embed_VH());
}

}  // namespace dflash::target
