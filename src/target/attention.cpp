// SPDX-License-Identifier: Apache-2.0
// ATen's tiled kernels are called by name: at::scaled_dot_product_attention would fall back without
// a word to one that holds all scores.
#include "attention.hpp"

#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <cmath>

namespace dflash::target {
namespace {

// [tokens, heads, D] -> [1, heads, tokens, D], a view.
at::Tensor as_batch(const at::Tensor& x_TND, std::int64_t begin, std::int64_t count) {
    return x_TND.narrow(0, begin, count).transpose(0, 1).unsqueeze(0);
}

// One document on the CPU. The kernel reads grouped key heads in place; its result is laid out
// [tokens, heads, D].
void attend_on_cpu(const at::Tensor& out_TND,
                   const at::Tensor& q_TND,
                   const at::Tensor& k_TGD,
                   const at::Tensor& v_TGD,
                   std::int64_t begin,
                   std::int64_t count,
                   double scale) {
    const auto [out, logsumexp] =
        at::_scaled_dot_product_flash_attention_for_cpu(as_batch(q_TND, begin, count),
                                                        as_batch(k_TGD, begin, count),
                                                        as_batch(v_TGD, begin, count),
                                                        /*dropout_p=*/0.0,
                                                        /*is_causal=*/true,
                                                        /*attn_mask=*/{},
                                                        scale);
    as_batch(out_TND, begin, count).copy_(out);
}

// One document in fp32 on CUDA, where the flash kernels take half types only. This kernel has no
// grouped heads: k and v of the document are repeated.
void attend_on_cuda_fp32(const at::Tensor& out_TND,
                         const at::Tensor& q_TND,
                         const at::Tensor& k_TGD,
                         const at::Tensor& v_TGD,
                         std::int64_t begin,
                         std::int64_t count,
                         double scale) {
    const std::int64_t group = div_exact(q_TND.size(1), k_TGD.size(1));
    const auto repeated = [&](const at::Tensor& x_TGD) {
        return as_batch(x_TGD.narrow(0, begin, count).repeat_interleave(group, 1), 0, count);
    };
    const at::Tensor out =
        std::get<0>(at::_scaled_dot_product_efficient_attention(as_batch(q_TND, begin, count),
                                                                repeated(k_TGD),
                                                                repeated(v_TGD),
                                                                /*attn_bias=*/{},
                                                                /*compute_log_sumexp=*/false,
                                                                /*dropout_p=*/0.0,
                                                                /*is_causal=*/true,
                                                                scale));
    as_batch(out_TND, begin, count).copy_(out);
}

}  // namespace

PackedLayout::PackedLayout(std::span<const std::int32_t> starts, at::Device device)
    : starts_(starts.begin(), starts.end()) {
    DFLASH_CHECK(!starts_.empty() && starts_.front() == 0, "starts must begin with 0");
    for (std::size_t i = 1; i < starts_.size(); ++i) {
        DFLASH_CHECK(starts_[i] >= starts_[i - 1],
                     "starts must not fall: {} after {}",
                     starts_[i],
                     starts_[i - 1]);
        longest_ = std::max<std::int64_t>(longest_, starts_[i] - starts_[i - 1]);
    }
    if (device.is_cuda()) {
        device_starts_ = tensor::upload(std::span<const std::int32_t>(starts_), device);
    }
}

void packed_causal_attention(const at::Tensor& out_TND,
                             const at::Tensor& q_TND,
                             const at::Tensor& k_TGD,
                             const at::Tensor& v_TGD,
                             const PackedLayout& layout) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(q_TND.size(2)));
    if (q_TND.is_cuda() && q_TND.scalar_type() != at::kFloat) {
        // All documents in one launch.
        const at::Tensor out = std::get<0>(at::_flash_attention_forward(q_TND,
                                                                        k_TGD,
                                                                        v_TGD,
                                                                        layout.device_starts(),
                                                                        layout.device_starts(),
                                                                        layout.longest(),
                                                                        layout.longest(),
                                                                        /*dropout_p=*/0.0,
                                                                        /*is_causal=*/true,
                                                                        /*return_debug_mask=*/false,
                                                                        scale));
        out_TND.copy_(out);
        return;
    }
    const std::span<const std::int32_t> starts = layout.starts();
    for (std::size_t document = 0; document + 1 < starts.size(); ++document) {
        const std::int64_t begin = starts[document];
        const std::int64_t count = starts[document + 1] - begin;
        if (count == 0) {
            continue;
        }
        if (q_TND.is_cuda()) {
            attend_on_cuda_fp32(out_TND, q_TND, k_TGD, v_TGD, begin, count, scale);
        } else {
            attend_on_cpu(out_TND, q_TND, k_TGD, v_TGD, begin, count, scale);
        }
    }
}

}  // namespace dflash::target
