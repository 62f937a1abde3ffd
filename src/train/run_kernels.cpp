// SPDX-License-Identifier: Apache-2.0
#include <dflash/train/run_kernels.hpp>

namespace dflash::train {

kernels::DrafterKernelShape kernel_shape(const model::DraftConfig& config,
                                         model::HeadPrecision head_precision) {
    kernels::DrafterKernelShape shape{
        .hidden_size = config.hidden_size,
        .intermediate_size = config.intermediate_size,
        .num_heads = config.num_heads,
        .num_kv_heads = config.num_kv_heads,
        .head_dim = config.head_dim,
        .block_size = config.block_size,
        .layers = {},
        .float8_logits = head_precision != model::HeadPrecision::Compute,
        .float8_gradient = head_precision == model::HeadPrecision::Float8};
    for (std::int64_t layer = 0; layer < config.num_layers(); ++layer) {
        shape.layers.push_back(
            {.causal = config.causal(layer), .windowed = config.window(layer) > 0});
    }
    return shape;
}

kernels::TargetKernelShape kernel_shape(const target::TargetConfig& config) {
    return {.hidden_size = config.hidden_size,
            .intermediate_size = config.intermediate_size,
            .head_dim = config.head_dim,
            .head_norm = config.family == target::Family::Qwen3};
}

}  // namespace dflash::train
