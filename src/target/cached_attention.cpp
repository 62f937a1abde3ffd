// SPDX-License-Identifier: Apache-2.0
// ATen's tiled kernels are called by name, as in attention.cpp.
#include "cached_attention.hpp"

#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace dflash::target {
namespace {

constexpr std::int64_t kMaskRows = 128;

// Queries and keys of one sequence.
struct Sequence {
    std::int64_t query_begin;
    std::int64_t num_queries;
    std::int64_t key_begin;
    std::int64_t num_keys;
};

// [tokens, heads, D] -> [1, heads, tokens, D], a view.
at::Tensor as_batch(const at::Tensor& x_TND, std::int64_t begin, std::int64_t count) {
    return x_TND.narrow(0, begin, count).transpose(0, 1).unsqueeze(0);
}

// The kernel counts causality from the first key, so queries behind earlier keys need a mask: 0
// where query i of `queries` may see, over `past` + queries keys.
at::Tensor causal_mask(std::int64_t queries, std::int64_t past, const at::TensorOptions& options) {
    at::Tensor mask = at::zeros({queries, past + queries}, options);
    mask.narrow(1, past, queries)
        .copy_(at::full({queries, queries}, -std::numeric_limits<double>::infinity(), options)
                   .triu(1));
    return mask;
}

void attend_on_cpu(const at::Tensor& out_TND,
                   const at::Tensor& q_TND,
                   const at::Tensor& keys_RGD,
                   const at::Tensor& values_RGD,
                   const Sequence& sequence,
                   double scale) {
    const std::int64_t before = sequence.num_keys - sequence.num_queries;
    // Without earlier keys the kernel's own causality serves, and it tiles by itself.
    const std::int64_t tile = before == 0 ? sequence.num_queries : kMaskRows;
    for (std::int64_t first = 0; first < sequence.num_queries; first += tile) {
        const std::int64_t queries = std::min(tile, sequence.num_queries - first);
        const std::int64_t past = before + first;
        const bool masked = past > 0 && queries > 1;
        std::optional<at::Tensor> mask;
        if (masked) {
            mask = causal_mask(queries, past, q_TND.options());
        }
        const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
            as_batch(q_TND, sequence.query_begin + first, queries),
            as_batch(keys_RGD, sequence.key_begin, past + queries),
            as_batch(values_RGD, sequence.key_begin, past + queries),
            /*dropout_p=*/0.0,
            /*is_causal=*/past == 0,
            mask,
            scale);
        as_batch(out_TND, sequence.query_begin + first, queries).copy_(out);
    }
}

// In fp32 on CUDA, where the flash kernels take half types only. This kernel has no grouped heads.
void attend_on_cuda_fp32(const at::Tensor& out_TND,
                         const at::Tensor& q_TND,
                         const at::Tensor& keys_RGD,
                         const at::Tensor& values_RGD,
                         const Sequence& sequence,
                         double scale) {
    constexpr std::int64_t kCausalFromTheLast = 2;  // sdp::CustomMaskType::CausalFromBottomRight
    const std::int64_t group = div_exact(q_TND.size(1), keys_RGD.size(1));
    const auto repeated = [&](const at::Tensor& x_RGD) {
        return x_RGD.narrow(0, sequence.key_begin, sequence.num_keys)
            .repeat_interleave(group, 1)
            .unsqueeze(0);
    };
    const at::Tensor out = std::get<0>(at::_efficient_attention_forward(
        q_TND.narrow(0, sequence.query_begin, sequence.num_queries).unsqueeze(0),
        repeated(keys_RGD),
        repeated(values_RGD),
        /*bias=*/{},
        /*cu_seqlens_q=*/{},
        /*cu_seqlens_k=*/{},
        /*max_seqlen_q=*/{},
        /*max_seqlen_k=*/{},
        /*dropout_p=*/0.0,
        kCausalFromTheLast,
        /*compute_log_sumexp=*/false,
        scale));
    out_TND.narrow(0, sequence.query_begin, sequence.num_queries).copy_(out[0]);
}

std::vector<std::int32_t> to_host(const at::Tensor& int32) {
    const at::Tensor host = int32.cpu().contiguous();
    const auto* data = host.const_data_ptr<std::int32_t>();
    return {data, data + host.numel()};
}

}  // namespace

void CachedLayout::upload(at::Device device) {
    if (!device.is_cuda()) {
        return;
    }
    std::vector<std::int32_t> closed = key_starts;
    closed.push_back(0);
    device_query_starts = tensor::upload(std::span<const std::int32_t>(query_starts), device);
    device_key_starts = tensor::upload(std::span<const std::int32_t>(closed), device);
    device_key_counts = tensor::upload(std::span<const std::int32_t>(key_counts), device);
}

void CachedLayout::download() {
    query_starts = to_host(device_query_starts);
    key_starts = to_host(device_key_starts);
    key_starts.pop_back();
    key_counts = to_host(device_key_counts);
}

bool attends_without_host(const at::Tensor& q_TND) {
    return q_TND.is_cuda() && q_TND.scalar_type() != at::kFloat;
}

at::Tensor cached_causal_attention(const at::Tensor& q_TND,
                                   const at::Tensor& keys_RGD,
                                   const at::Tensor& values_RGD,
                                   const CachedLayout& layout) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(q_TND.size(2)));
    if (attends_without_host(q_TND)) {
        // All sequences in one launch. With the counts given, the kernel (flash_attn 2's varlen
        // forward) takes from the starts of keys nothing but where each sequence begins, so slots
        // may stand in any order. It aligns causality with the last key, and packs grouped heads
        // into one tile where each sequence has one query.
        const at::Tensor out =
            std::get<0>(at::_flash_attention_forward(q_TND,
                                                     keys_RGD,
                                                     values_RGD,
                                                     layout.device_query_starts,
                                                     layout.device_key_starts,
                                                     layout.most_queries,
                                                     layout.most_keys,
                                                     /*dropout_p=*/0.0,
                                                     /*is_causal=*/true,
                                                     /*return_debug_mask=*/false,
                                                     scale,
                                                     /*window_size_left=*/std::nullopt,
                                                     /*window_size_right=*/std::nullopt,
                                                     layout.device_key_counts));
        return out.reshape({q_TND.size(0), q_TND.size(1) * q_TND.size(2)});
    }
    const at::Tensor out_TND = at::empty(q_TND.sizes(), q_TND.options());
    for (std::size_t s = 0; s + 1 < layout.query_starts.size(); ++s) {
        const Sequence sequence{.query_begin = layout.query_starts[s],
                                .num_queries = layout.query_starts[s + 1] - layout.query_starts[s],
                                .key_begin = layout.key_starts[s],
                                .num_keys = layout.key_counts[s]};
        if (sequence.num_queries == 0) {
            continue;
        }
        if (q_TND.is_cuda()) {
            attend_on_cuda_fp32(out_TND, q_TND, keys_RGD, values_RGD, sequence, scale);
        } else {
            attend_on_cpu(out_TND, q_TND, keys_RGD, values_RGD, sequence, scale);
        }
    }
    return out_TND.view({q_TND.size(0), q_TND.size(1) * q_TND.size(2)});
}

}  // namespace dflash::target
