// SPDX-License-Identifier: Apache-2.0
// The weight files of a target, judged against its configuration before anything is read.
#pragma once

#include <dflash/io/safetensors.hpp>
#include <dflash/target/config.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace dflash::target {

/// Name and shape of one weight as a checkpoint stores it.
struct StoredWeight {
    std::string name;
    std::vector<std::int64_t> shape;
};

inline constexpr const char* kEmbedName = "model.embed_tokens.weight";
inline constexpr const char* kHeadName = "lm_head.weight";
inline constexpr const char* kFinalNormName = "model.norm.weight";

/// "model.layers.3.mlp.up_proj.weight" for layer 3 and "mlp.up_proj".
std::string layer_weight_name(std::int64_t layer, const std::string& part);

/// All weights of a checkpoint, the head included.
std::vector<StoredWeight> stored_weights(const TargetConfig& config);

/// Opened and judged files: every weight is there, with its shape and a floating dtype, and none
/// besides.
class Checkpoint {
  public:
    /// Throws Error{Data} naming tensor, shapes, file and the nearest name.
    Checkpoint(const std::string& folder, const TargetConfig& config);

    const io::TensorView& at(const std::string& name) const;

    /// "FILE: NAME", for messages.
    std::string where(const std::string& name) const;

    /// Whether the embedding is the head: tied, or no head is stored where config.json does not
    /// say. A stored copy is compared, which reads both; one that differs is used, with a warning,
    /// as transformers does.
    bool head_is_embedding() const;

  private:
    void judge_names() const;
    void judge_shapes() const;

    io::SafetensorsFolder files_;
    TargetConfig config_;
    std::vector<StoredWeight> expected_;
};

}  // namespace dflash::target
