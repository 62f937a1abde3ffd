// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/tensor/bridge.hpp>

#include <ATen/ATen.h>
#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

namespace dflash::target {
namespace {

constexpr std::size_t kNamesInMessage = 5;

std::string shape_text(const std::vector<std::int64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string list_some(const std::vector<std::string>& names) {
    const std::size_t shown = std::min(names.size(), kNamesInMessage);
    const std::vector<std::string> first(names.begin(),
                                         names.begin() + static_cast<std::ptrdiff_t>(shown));
    return names.size() > shown
               ? fmt::format("{} and {} more", fmt::join(first, ", "), names.size() - shown)
               : fmt::format("{}", fmt::join(first, ", "));
}

// Old Llama checkpoints carry the rotary frequencies as buffers; they follow from config.json.
bool is_rotary_buffer(const std::string& name) {
    return name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace

std::string layer_weight_name(std::int64_t layer, const std::string& part) {
    return fmt::format("model.layers.{}.{}.weight", layer, part);
}

std::vector<StoredWeight> stored_weights(const TargetConfig& config) {
    const std::int64_t q_rows = config.num_heads * config.head_dim;
    const std::int64_t kv_rows = config.num_kv_heads * config.head_dim;
    const std::int64_t hidden = config.hidden_size;
    const std::int64_t inner = config.intermediate_size;
    std::vector<StoredWeight> weights;
    weights.push_back({kEmbedName, {config.vocab_size, hidden}});
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        const auto add = [&](const char* part, std::vector<std::int64_t> shape) {
            weights.push_back({layer_weight_name(layer, part), std::move(shape)});
        };
        add("input_layernorm", {hidden});
        add("self_attn.q_proj", {q_rows, hidden});
        add("self_attn.k_proj", {kv_rows, hidden});
        add("self_attn.v_proj", {kv_rows, hidden});
        add("self_attn.o_proj", {hidden, q_rows});
        if (config.family == Family::Qwen3) {
            add("self_attn.q_norm", {config.head_dim});
            add("self_attn.k_norm", {config.head_dim});
        }
        add("post_attention_layernorm", {hidden});
        add("mlp.gate_proj", {inner, hidden});
        add("mlp.up_proj", {inner, hidden});
        add("mlp.down_proj", {hidden, inner});
    }
    weights.push_back({kFinalNormName, {hidden}});
    weights.push_back({kHeadName, {config.vocab_size, hidden}});
    return weights;
}

Checkpoint::Checkpoint(const std::string& folder, const TargetConfig& config)
    : files_(folder), config_(config), expected_(stored_weights(config)) {
    judge_names();
    judge_shapes();
}

void Checkpoint::judge_names() const {
    std::set<std::string> expected;
    std::vector<std::string> missing;
    std::size_t first_missing = 0;
    for (std::size_t i = 0; i < expected_.size(); ++i) {
        const std::string& name = expected_[i].name;
        expected.insert(name);
        const bool may_lack = name == kHeadName && (config_.tied || config_.tied_by_default);
        if (files_.find(name) == nullptr && !may_lack) {
            first_missing = missing.empty() ? i : first_missing;
            missing.push_back(name);
        }
    }
    std::vector<std::string> extra;
    std::size_t buffers = 0;
    for (const std::string& name : files_.names()) {
        if (!expected.contains(name)) {
            if (is_rotary_buffer(name)) {
                ++buffers;
            } else {
                extra.push_back(name);
            }
        }
    }
    const std::string hint = fmt::format(
        "config.json ({}, {} layers) and the weights do not belong together, or the download is "
        "not complete",
        config_.architecture,
        config_.num_layers);
    if (!missing.empty()) {
        const StoredWeight& first = expected_[first_missing];
        std::string nearest;
        if (const auto name = nearest_name(first.name, extra)) {
            nearest = fmt::format(
                "the nearest name there is {} {}", *name, io::describe(*files_.find(*name)));
        }
        const std::string others =
            missing.size() == 1 ? ""
                                : fmt::format(", and {} more: {}",
                                              missing.size() - 1,
                                              list_some({missing.begin() + 1, missing.end()}));
        throw Error(ErrorKind::Data,
                    {.what = fmt::format("weight is missing: {}, expected with shape {}{}",
                                         first.name,
                                         shape_text(first.shape),
                                         others),
                     .where = files_.folder(),
                     .cause = nearest,
                     .hint = hint});
    }
    if (!extra.empty()) {
        throw Error(ErrorKind::Data,
                    {.what = fmt::format(
                         "{} that {} does not have: {} (the first is {})",
                         extra.size() == 1 ? "a weight" : fmt::format("{} weights", extra.size()),
                         config_.architecture,
                         list_some(extra),
                         io::describe(*files_.find(extra.front()))),
                     .where = files_.file_of(extra.front()),
                     .cause = {},
                     .hint = hint});
    }
    if (buffers > 0) {
        log_info(
            "{}: {} stored buffers of rotary frequencies are not used; they follow from "
            "config.json",
            files_.folder(),
            buffers);
    }
}

void Checkpoint::judge_shapes() const {
    for (const StoredWeight& weight : expected_) {
        const io::TensorView* view = files_.find(weight.name);
        if (view == nullptr) {
            continue;  // a head that may be missing
        }
        if (view->shape != weight.shape) {
            throw Error(ErrorKind::Data,
                        {.what = fmt::format("weight {}: got shape {}, expected {}",
                                             weight.name,
                                             shape_text(view->shape),
                                             shape_text(weight.shape)),
                         .where = files_.file_of(weight.name),
                         .cause = {},
                         .hint = "config.json and the weights do not belong together"});
        }
        if (view->dtype != io::DType::BF16 && view->dtype != io::DType::F16 &&
            view->dtype != io::DType::F32 && view->dtype != io::DType::F64) {
            throw Error(ErrorKind::Data,
                        {.what = fmt::format("weight {}: got dtype {}, expected BF16, F16, F32 or "
                                             "F64",
                                             weight.name,
                                             io::to_string(view->dtype)),
                         .where = files_.file_of(weight.name),
                         .cause = {},
                         .hint = "Quantised targets are not supported"});
        }
    }
}

const io::TensorView& Checkpoint::at(const std::string& name) const {
    const io::TensorView* view = files_.find(name);
    DFLASH_CHECK(view != nullptr, "{} was not judged", name);
    return *view;
}

std::string Checkpoint::where(const std::string& name) const {
    return fmt::format("{}: {}", files_.file_of(name), name);
}

bool Checkpoint::head_is_embedding() const {
    const io::TensorView* head = files_.find(kHeadName);
    if (head == nullptr) {
        if (!config_.tied) {
            log_warning(
                "{}: {} is not stored and config.json does not say whether it is tied; the "
                "embedding is used as head",
                files_.folder(),
                kHeadName);
        }
        return true;
    }
    if (!config_.tied) {
        return false;
    }
    const io::TensorView& embed = at(kEmbedName);
    bool equal = true;
    if (head->dtype == embed.dtype) {
        equal = std::memcmp(head->data.data(), embed.data.data(), embed.data.size()) == 0;
    } else {
        equal = at::equal(tensor::load(*head, at::kCPU, at::kFloat),
                          tensor::load(embed, at::kCPU, at::kFloat));
    }
    if (!equal) {
        log_warning(
            "{}: config.json ties embedding and head, but {} is stored with other values "
            "than {}; the stored head is used",
            files_.folder(),
            kHeadName,
            kEmbedName);
    }
    return equal;
}

}  // namespace dflash::target
