// SPDX-License-Identifier: Apache-2.0
// ATen's kernels are called by name: at::scaled_dot_product_attention would fall back without a
// word to one that holds all scores. X keys in reach of a block.
#include "cached_attention.hpp"

#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

namespace dflash::model {
namespace {

/// ATen's flash kernel is for half types on CUDA; it takes all sequences in one launch.
bool has_flash_kernel(at::Device device, at::ScalarType dtype) {
    return device.is_cuda() && dtype != at::kFloat;
}

/// Rows of one sequence as a batch of one, [1, heads, rows, d]: a view.
at::Tensor as_batch(const at::Tensor& x_RNd, std::int64_t begin, std::int64_t count) {
    return x_RNd.narrow(0, begin, count).transpose(0, 1).unsqueeze(0);
}

/// What is added to the scores of keys first .. context + b - 1, [b, X] in `dtype`: 0 where the
/// slot sees the key, else minus infinity. Undefined if every slot sees all of them. Rows have a
/// stride of whole 32 bytes, which CUDA's kernel asks for.
at::Tensor additive_mask(const AttentionMask& mask,
                         std::int64_t first,
                         std::int64_t context,
                         std::int64_t b,
                         at::Device device,
                         at::ScalarType dtype) {
    const std::int64_t end = context + b;
    const auto sees = [&](std::int64_t query, std::int64_t key) {
        const std::int64_t behind = query - key;
        const bool hidden = mask.causal && behind < 0;
        const bool far = mask.window > 0 && std::abs(behind) >= mask.window;
        return !hidden && !far;
    };
    // The first slot and the last one see least, of what lies behind and before them.
    if (sees(context, end - 1) && sees(end - 1, first)) {
        return {};
    }
    constexpr std::int64_t kStep = 8;
    const std::int64_t stride = (end - first + kStep - 1) / kStep * kStep;
    std::vector<float> values(static_cast<std::size_t>(b * stride), 0.0F);
    for (std::int64_t slot = 0; slot < b; ++slot) {
        for (std::int64_t key = first; key < end; ++key) {
            if (!sees(context + slot, key)) {
                values[static_cast<std::size_t>(slot * stride + key - first)] =
                    -std::numeric_limits<float>::infinity();
            }
        }
    }
    return tensor::upload(std::span<const float>(values), device)
        .to(dtype)
        .view({b, stride})
        .narrow(1, 0, end - first);
}

void attend_on_cpu(const at::Tensor& out,
                   const at::Tensor& q,
                   const at::Tensor& k,
                   const at::Tensor& v,
                   const at::Tensor& mask_bX,
                   double scale) {
    std::optional<at::Tensor> mask;
    if (mask_bX.defined()) {
        mask = mask_bX.unsqueeze(0).unsqueeze(0);
    }
    out.copy_(std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
        q, k, v, /*dropout_p=*/0.0, /*is_causal=*/false, mask, scale)));
}

/// This kernel has no grouped heads: keys and values are repeated.
void attend_on_cuda_fp32(const at::Tensor& out,
                         const at::Tensor& q,
                         const at::Tensor& k,
                         const at::Tensor& v,
                         const at::Tensor& mask_bX,
                         double scale) {
    const std::int64_t group = div_exact(q.size(1), k.size(1));
    std::optional<at::Tensor> mask;
    if (mask_bX.defined()) {
        mask = mask_bX.unsqueeze(0).unsqueeze(0).expand({1, q.size(1), -1, -1});
    }
    out.copy_(std::get<0>(at::_scaled_dot_product_efficient_attention(q,
                                                                      k.repeat_interleave(group, 1),
                                                                      v.repeat_interleave(group, 1),
                                                                      mask,
                                                                      /*compute_log_sumexp=*/false,
                                                                      /*dropout_p=*/0.0,
                                                                      /*is_causal=*/false,
                                                                      scale)));
}

}  // namespace

CachedAttention::CachedAttention(const at::Tensor& begin_S,
                                 const at::Tensor& context_S,
                                 std::int64_t block_size,
                                 std::int64_t most_keys,
                                 at::ScalarType dtype)
    : device_(begin_S.device()), block_size_(block_size), most_keys_(most_keys) {
    const std::int64_t count = begin_S.size(0);
    if (has_flash_kernel(device_, dtype)) {
        query_starts_ = at::arange(0, count * block_size + 1, block_size, begin_S.options());
        key_starts_ = at::constant_pad_nd(begin_S, {0, 1});
        num_keys_ = context_S + block_size;
        return;
    }
    const at::Tensor both = at::stack({begin_S, context_S}).cpu();
    const auto* values = both.const_data_ptr<std::int32_t>();
    for (std::int64_t n = 0; n < count; ++n) {
        blocks_.push_back({.begin = values[n], .context = values[count + n]});
    }
}

void CachedAttention::forward(const at::Tensor& out_MQd,
                              const at::Tensor& q_MQd,
                              const at::Tensor& keys_RKd,
                              const at::Tensor& values_RKd,
                              const AttentionMask& mask) const {
    const double scale = 1.0 / std::sqrt(static_cast<double>(q_MQd.size(2)));
    const at::ScalarType dtype = q_MQd.scalar_type();
    if (has_flash_kernel(device_, dtype)) {
        // The last query stands at the last key, so the kernel's causal mask and windows are ours.
        std::optional<std::int64_t> left;
        std::optional<std::int64_t> right;
        if (mask.window > 0) {
            left = mask.window - 1;
            right = mask.causal ? 0 : mask.window - 1;
        }
        out_MQd.copy_(std::get<0>(at::_flash_attention_forward(q_MQd,
                                                               keys_RKd,
                                                               values_RKd,
                                                               query_starts_,
                                                               key_starts_,
                                                               block_size_,
                                                               most_keys_,
                                                               /*dropout_p=*/0.0,
                                                               mask.causal,
                                                               /*return_debug_mask=*/false,
                                                               scale,
                                                               left,
                                                               right,
                                                               num_keys_)));
        return;
    }
    for (std::size_t n = 0; n < blocks_.size(); ++n) {
        const CachedBlock& block = blocks_[n];
        const std::int64_t first_query = static_cast<std::int64_t>(n) * block_size_;
        // Keys that no slot of the block sees are left out.
        const std::int64_t first =
            mask.window > 0 ? std::max<std::int64_t>(0, block.context - mask.window + 1) : 0;
        const std::int64_t num_keys = block.context + block_size_ - first;
        const at::Tensor mask_bX =
            additive_mask(mask, first, block.context, block_size_, device_, dtype);
        const auto attend = device_.is_cuda() ? attend_on_cuda_fp32 : attend_on_cpu;
        attend(as_batch(out_MQd, first_query, block_size_),
               as_batch(q_MQd, first_query, block_size_),
               as_batch(keys_RKd, block.begin + first, num_keys),
               as_batch(values_RKd, block.begin + first, num_keys),
               mask_bX,
               scale);
    }
}

}  // namespace dflash::model
