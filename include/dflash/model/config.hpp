// SPDX-License-Identifier: Apache-2.0
// Configuration of a drafter: the published config.json of DFlash checkpoints, read and written.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/io/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dflash::model {

enum class LayerType { Full, Sliding };

struct DraftConfig {
    std::int64_t hidden_size = 0;        // H, equal to the target's
    std::int64_t intermediate_size = 0;  // I
    std::int64_t num_heads = 0;          // n_q
    std::int64_t num_kv_heads = 0;       // n_kv
    std::int64_t head_dim = 0;           // d
    std::int64_t vocab_size = 0;         // V, rows of the target's embedding
    std::int64_t block_size = 16;        // B
    TokenId mask_token_id = -1;
    std::vector<std::int64_t> target_layer_ids;  // K ids; id l = output of decoder layer l, from 0
    std::int64_t num_target_layers = 0;          // 0: config.json does not say
    std::vector<LayerType> layer_types;          // [D]
    std::int64_t sliding_window = 0;             ///< w of sliding layers; 0 without any
    std::optional<bool> is_causal;  ///< top-level key: overrides "sliding means causal"
    double rms_norm_eps = 1e-6;
    double rope_theta = 1e6;
    std::int64_t max_position_embeddings = 40960;
    std::int64_t bos_token_id = -1;  ///< -1: not written
    std::vector<std::int64_t> eos_token_ids;
    double initializer_range = 0.02;

    std::int64_t num_layers() const { return static_cast<std::int64_t>(layer_types.size()); }

    std::int64_t num_features() const { return static_cast<std::int64_t>(target_layer_ids.size()); }

    /// Whether slots of a block in this layer see only earlier slots and themselves.
    bool causal(std::int64_t layer) const {
        return is_causal.value_or(layer_types[static_cast<std::size_t>(layer)] ==
                                  LayerType::Sliding);
    }

    /// Window of a layer in tokens: key visible iff query position - key position < window; 0 = no
    /// window.
    std::int64_t window(std::int64_t layer) const {
        return layer_types[static_cast<std::size_t>(layer)] == LayerType::Sliding ? sliding_window
                                                                                  : 0;
    }

    /// Reads a published config.json (z-lab first and second generation: block_size in
    /// dflash_config or top level, rope_theta or rope_parameters) or of speculators. What changes
    /// the maths (DFlash 2 keys, projector_type, ...) is refused by name. Throws Error{Config}.
    static DraftConfig from_json(const io::Json& json, const std::string& where);

    /// The published format, block_size in both places.
    io::Json to_json() const;

    /// Throws Error{Config} if the numbers do not fit together.
    void validate(const std::string& where) const;

    friend bool operator==(const DraftConfig&, const DraftConfig&) = default;
};

/// Evenly spaced tapped layers: round-half-even(1 + i (L-4)/(n-1)); n = 1 gives L/2. Source:
/// SpecForge a6b6b02 `build_target_layer_ids`.
std::vector<std::int64_t> default_target_layer_ids(std::int64_t num_target_layers,
                                                   std::int64_t count);

/// Names and shapes of all weights in checkpoint order (11 D + 3), as published.
struct WeightSpec {
    std::string name;
    std::vector<std::int64_t> shape;

    std::int64_t num_elements() const;
};

std::vector<WeightSpec> weight_specs(const DraftConfig& config);

/// Elements of all weights together.
std::int64_t num_parameters(const DraftConfig& config);

}  // namespace dflash::model
