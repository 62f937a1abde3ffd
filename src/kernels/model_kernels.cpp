// SPDX-License-Identifier: Apache-2.0
// The one place that knows which kernels a model is made of; what calls them must use no others, or
// the compile barrier refuses.
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/kernels/adamw.hpp>
#include <dflash/kernels/attention.hpp>
#include <dflash/kernels/cross_entropy.hpp>
#include <dflash/kernels/head_norm.hpp>
#include <dflash/kernels/model_kernels.hpp>
#include <dflash/kernels/quantize_rows.hpp>
#include <dflash/kernels/rms_norm.hpp>
#include <dflash/kernels/swiglu.hpp>

#include <algorithm>
#include <fmt/format.h>

namespace dflash::kernels {
namespace {

[[noreturn]] void refuse(const std::string& name, std::int64_t got, const std::string& expected) {
    throw Error(ErrorKind::Config,
                {.what = fmt::format("{}: got {}, expected {}", name, got, expected),
                 .where = "the kernels for GPUs",
                 .cause = {},
                 .hint = "Choose another size or model, or train on CPU devices, which have no "
                         "such limits"});
}

/// `of`: what stands before the names of sizes.
void check_sizes(const std::string& of,
                 std::int64_t head_dim,
                 std::int64_t hidden_size,
                 std::int64_t intermediate_size) {
    if (head_dim != 32 && head_dim != 64 && head_dim != 128 && head_dim != 256) {
        refuse(of + "head_dim", head_dim, "32, 64, 128 or 256");
    }
    if (hidden_size < 64 || hidden_size > 8192 || hidden_size % 8 != 0) {
        refuse(of + "hidden_size", hidden_size, "a multiple of 8 from 64 to 8192");
    }
    if (intermediate_size < 8 || intermediate_size % 8 != 0) {
        refuse(of + "intermediate_size", intermediate_size, "a multiple of 8");
    }
}

std::vector<KernelSpec> float8_kernels(const DrafterKernelShape& shape,
                                       const Architecture& architecture) {
    if (!has_float8(architecture)) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("draft.head_precision: got a head in fp8, which {} does "
                                         "not have, expected bf16",
                                         architecture.name()),
                     .where = "the kernels for GPUs",
                     .cause = {},
                     .hint = "A head in fp8 takes compute capability 9.0 (H100, H200); use "
                             "draft.head_precision = \"bf16\" on others"});
    }
    std::vector<KernelSpec> kernels{quantize_rows_kernel()};
    if (shape.float8_gradient) {
        kernels.push_back(cross_entropy_kernel(Element::Float32, Element::Float8E5M2));
    }
    return kernels;
}

}  // namespace

void check_shape(const DrafterKernelShape& shape) {
    check_sizes("draft.", shape.head_dim, shape.hidden_size, shape.intermediate_size);
    constexpr std::int64_t kMaxGroup = 8;
    if (shape.num_kv_heads < 1 || shape.num_heads % shape.num_kv_heads != 0 ||
        shape.num_heads / shape.num_kv_heads > kMaxGroup || shape.num_heads < 1) {
        refuse("draft.num_heads",
               shape.num_heads,
               fmt::format(
                   "1 to {} times draft.num_kv_heads, which is {}", kMaxGroup, shape.num_kv_heads));
    }
    if (shape.block_size < 2 || shape.block_size > 32) {
        refuse("draft.block_size", shape.block_size, "2 to 32");
    }
}

void check_shape(const TargetKernelShape& shape) {
    check_sizes("the target's ", shape.head_dim, shape.hidden_size, shape.intermediate_size);
}

std::vector<KernelSpec> drafter_kernels(const DrafterKernelShape& shape,
                                        const Architecture& architecture) {
    check_shape(shape);
    std::vector<std::vector<KernelSpec>> lists;
    for (const LayerKind& kind : shape.layers) {
        lists.push_back(
            attention_kernels({.head_dim = narrow<int>(shape.head_dim),
                               .group = narrow<int>(div_exact(shape.num_heads, shape.num_kv_heads)),
                               .block_size = narrow<int>(shape.block_size),
                               .causal = kind.causal,
                               .windowed = kind.windowed},
                              architecture));
    }
    lists.push_back(drafter_rms_norm_kernels(shape.hidden_size));
    // Gradients of q and k come from attention in bf16.
    lists.push_back(drafter_head_norm_kernels({.head_dim = shape.head_dim}, Element::BFloat16));
    lists.push_back({swiglu_forward_kernel(),
                     swiglu_backward_kernel(),
                     cross_entropy_kernel(Element::Float32)});
    if (shape.float8_logits || shape.float8_gradient) {
        lists.push_back(float8_kernels(shape, architecture));
    }
    lists.push_back(adamw_kernels());
    return merge_kernels(lists);
}

std::vector<KernelSpec> target_kernels(const TargetKernelShape& shape) {
    check_shape(shape);
    return merge_kernels(
        {target_rms_norm_kernels(shape.hidden_size),
         target_head_norm_kernels(
             {.head_dim = shape.head_dim, .rotary_columns = shape.rotary_columns}, shape.head_norm),
         {swiglu_forward_kernel()}});
}

std::vector<ShippedDrafter> shipped_drafters() {
    // Blocks are causal in sliding layers only.
    constexpr LayerKind kFull{};
    constexpr LayerKind kSliding{.causal = true, .windowed = true};
    const auto qwen = [](std::int64_t hidden_size,
                         std::int64_t intermediate_size,
                         std::vector<LayerKind> layers) {
        return DrafterKernelShape{.hidden_size = hidden_size,
                                  .intermediate_size = intermediate_size,
                                  .num_heads = 32,
                                  .num_kv_heads = 8,
                                  .head_dim = 128,
                                  .block_size = 16,
                                  .layers = std::move(layers)};
    };
    const auto qwen3_target = [](std::int64_t hidden_size, std::int64_t intermediate_size) {
        return TargetKernelShape{.hidden_size = hidden_size,
                                 .intermediate_size = intermediate_size,
                                 .head_dim = 128,
                                 .head_norm = true};
    };
    // Its full-attention layers: heads of 256, of which a quarter turns.
    const TargetKernelShape dense_27b{.hidden_size = 5120,
                                      .intermediate_size = 17408,
                                      .head_dim = 256,
                                      .rotary_columns = 64,
                                      .head_norm = true};
    return {
        {"Qwen3-4B", qwen(2560, 9728, {kFull}), qwen3_target(2560, 9728)},
        {"Qwen3-8B", qwen(4096, 12288, {kFull}), qwen3_target(4096, 12288)},
        {"Qwen3.5-27B", qwen(5120, 17408, {kFull}), dense_27b},
        {"Qwen3.6-27B", qwen(5120, 17408, {kFull, kSliding}), dense_27b},
        {"SmolLM2-135M",
         {.hidden_size = 576,
          .intermediate_size = 1536,
          .num_heads = 9,
          .num_kv_heads = 3,
          .head_dim = 64,
          .block_size = 16,
          .layers = {kFull}},
         {.hidden_size = 576, .intermediate_size = 1536, .head_dim = 64}},
        {"heads of 256",
         {.hidden_size = 5120,
          .intermediate_size = 17408,
          .num_heads = 24,
          .num_kv_heads = 4,
          .head_dim = 256,
          .block_size = 16,
          .layers = {kFull}},
         dense_27b},
    };
}

std::vector<KernelSpec> shipped_kernels(const Architecture& architecture) {
    std::vector<std::vector<KernelSpec>> lists;
    for (const ShippedDrafter& shipped : shipped_drafters()) {
        DrafterKernelShape drafter = shipped.drafter;
        drafter.float8_logits = has_float8(architecture);
        drafter.float8_gradient = drafter.float8_logits;
        lists.push_back(drafter_kernels(drafter, architecture));
        lists.push_back(target_kernels(shipped.target));
    }
    return merge_kernels(lists);
}

}  // namespace dflash::kernels
