// SPDX-License-Identifier: Apache-2.0
// Configuration of a target: config.json of an HF model folder, both spellings of its keys.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/io/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dflash::target {

enum class Family { Llama, Qwen3 };

enum class RopeKind { Default, Linear, Llama3, Yarn };

/// Rotary embedding; frequencies by spec of transformers' modeling_rope_utils (fp32).
struct RopeConfig {
    RopeKind kind = RopeKind::Default;
    double theta = 10000;
    double factor = 1;
    double low_freq_factor = 1;
    double high_freq_factor = 4;
    double original_max_position = 0;
    double beta_fast = 32;
    double beta_slow = 1;
    bool truncate = true;
    std::optional<double> attention_factor;
    std::optional<double> mscale;
    std::optional<double> mscale_all_dim;
};

struct TargetConfig {
    Family family = Family::Qwen3;
    std::string architecture;  ///< "Qwen3ForCausalLM"
    std::string model_type;
    std::int64_t hidden_size = 0;
    std::int64_t intermediate_size = 0;
    std::int64_t num_layers = 0;
    std::int64_t num_heads = 0;
    std::int64_t num_kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t vocab_size = 0;
    std::int64_t max_position_embeddings = 0;
    double rms_norm_eps = 1e-6;
    bool tied = false;
    bool tied_by_default = false;  ///< config.json does not say whether
    bool attention_bias = false;
    bool mlp_bias = false;
    RopeConfig rope;
    std::int64_t bos_token_id = -1;
    std::vector<std::int64_t> eos_token_ids;
    std::string dtype;  ///< as stored: "bfloat16"

    /// Reads config.json of a folder. Throws Error{Config}: no folder, no config.json, unsupported
    /// architecture (named, with the list of supported ones), unsupported features (sliding windows
    /// in use, biases, longrope, ...).
    static TargetConfig read(const std::string& folder);

    std::int64_t num_parameters(std::int64_t layers, bool with_ends) const;
};

/// Inverse frequencies [head_dim / 2] in fp32 and the factor on cos and sin.
struct RopeTable {
    std::vector<float> inv_freq;
    double attention_factor = 1;
};

RopeTable rope_table(const RopeConfig& rope, std::int64_t head_dim, std::int64_t max_position);

/// Finds a target: an existing folder as it is, an id ORG/NAME in $HF_HUB_CACHE, $HF_HOME/hub,
/// ~/.cache/huggingface/hub (revision of refs/main). Throws Error{Config} with what the cache holds
/// and the `hf download` command.
struct TargetLocation {
    std::string folder;
    std::string name;      ///< short name for folders of runs: "Qwen3-8B"
    std::string revision;  ///< of the cache; empty for a folder
};

TargetLocation find_target(const std::string& folder_or_id);

}  // namespace dflash::target
