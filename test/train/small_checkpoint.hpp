// SPDX-License-Identifier: Apache-2.0
// A checkpoint of a drafter of a few thousand weights, made without training.
#pragma once

#include <dflash/train/checkpoint.hpp>

#include <ATen/ATen.h>
#include <cstdint>

namespace dflash::train {

inline model::DraftConfig small_drafter() {
    model::DraftConfig config;
    config.hidden_size = 16;
    config.intermediate_size = 32;
    config.num_heads = 2;
    config.num_kv_heads = 1;
    config.head_dim = 8;
    config.vocab_size = 64;
    config.block_size = 4;
    config.mask_token_id = 3;
    config.target_layer_ids = {1, 2};
    config.num_target_layers = 4;
    config.layer_types = {model::LayerType::Full};
    return config;
}

/// Values differ by step.
inline OptimizerState small_state(std::int64_t step) {
    const std::int64_t size = model::num_parameters(small_drafter());
    const at::Tensor ramp = at::arange(size, at::kFloat);
    const auto scale = static_cast<double>(step);
    return {ramp.mul(scale), ramp.add(scale), ramp.sub(scale), step > 2 ? step - 2 : step};
}

inline Checkpoint small_checkpoint(std::int64_t step) {
    Checkpoint checkpoint;
    checkpoint.progress.step = step;
    checkpoint.progress.rows = 4 * step;
    checkpoint.progress.trained_s = 0.5;
    checkpoint.identity = {{"train.lr", "0.001"}};
    checkpoint.config = small_drafter();
    checkpoint.optimizer = small_state(step);
    return checkpoint;
}

}  // namespace dflash::train
