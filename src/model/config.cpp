// SPDX-License-Identifier: Apache-2.0
#include "speculators_config.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/model/config.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

namespace dflash::model {
namespace {

/// Beyond any drafter; a damaged number must not become as many entries.
constexpr std::int64_t kMaxLayers = 1024;

constexpr std::string_view kFull = "full_attention";
constexpr std::string_view kSliding = "sliding_attention";

[[noreturn]] void refuse(const std::string& what, const std::string& where, std::string hint = {}) {
    throw Error(ErrorKind::Config,
                {.what = what, .where = where, .cause = {}, .hint = std::move(hint)});
}

/// Keys of later drafters and of servers that change the maths; the values that do not are listed
/// by is_neutral.
constexpr std::array<std::string_view, 24> kExtensions{
    "attention_sink_bias",     "attention_value_scale", "causal_head",
    "conv_group_size",         "conv_kernel_size",      "emb_dim",
    "final_logit_softcapping", "gru_hidden_dim",        "input_embedding_scale",
    "is_neox_style",           "logit_scale",           "output_multiplier",
    "partial_rotary_factor",   "projector_type",        "pure_draft_prefix_len",
    "rope_is_neox_style",      "sample_from_anchor",    "selector_rank",
    "selector_top_k",          "shift_label",           "sliding_window_non_causal",
    "speculators_model_type",  "swa_window_size",       "use_swa",
};

/// Whether a value of an extension leaves the plain drafter's maths as it is.
bool is_neutral(std::string_view key, const io::Json& value) {
    if (value.is_null()) {
        return true;
    }
    if (value.is_bool()) {
        const bool plain = key == "is_neox_style" || key == "rope_is_neox_style";
        return value.as_bool() == plain;
    }
    if (value.is_number()) {
        const bool factor = key == "input_embedding_scale" || key == "logit_scale" ||
                            key == "output_multiplier" || key == "partial_rotary_factor" ||
                            key == "attention_value_scale";
        return factor && value.to_double() == 1.0;
    }
    return false;
}

void refuse_extensions(const io::Json& object, const std::string& where) {
    for (const std::string_view key : kExtensions) {
        const io::Json* value = object.find(key);
        if (value != nullptr && !is_neutral(key, *value)) {
            refuse(
                fmt::format("{}: got {}, which is not a plain DFlash drafter", key, value->dump()),
                where,
                "only first-generation DFlash drafters (plain DFlashDraftModel) can be trained");
        }
    }
}

void refuse_other_architectures(const io::Json& json, const std::string& where) {
    const io::Json* names = json.find("architectures");
    if (names == nullptr || names->is_null()) {
        return;
    }
    if (!names->is_array()) {
        refuse(fmt::format("architectures: got {}, expected a list", names->kind_name()), where);
    }
    for (const io::Json& name : names->items()) {
        // Automodel writes the second name (36044ad, components/speculative/dflash).
        if (!name.is_string() || (name.as_string() != "DFlashDraftModel" &&
                                  name.as_string() != "Qwen3DFlashDraftModel")) {
            refuse(fmt::format("architectures: got {}, expected \"DFlashDraftModel\"", name.dump()),
                   where,
                   "only first-generation DFlash drafters can be trained");
        }
    }
}

/// A key that must have one value if it is there.
void require_bool(const io::Json& json,
                  std::string_view key,
                  bool expected,
                  const std::string& where) {
    const std::optional<bool> value = json.optional_bool(key, where);
    if (value && *value != expected) {
        refuse(fmt::format("{}: got {}, expected {}", key, *value, expected), where);
    }
}

std::vector<std::int64_t> integer_list(const io::Json& value,
                                       std::string_view key,
                                       const std::string& where) {
    std::vector<std::int64_t> result;
    if (!value.is_array()) {
        refuse(fmt::format("{}: got {}, expected a list of integers", key, value.kind_name()),
               where);
    }
    for (const io::Json& item : value.items()) {
        const std::optional<std::int64_t> number =
            item.is_number() ? item.to_integer() : std::nullopt;
        if (!number) {
            refuse(fmt::format("{}: got {} in the list, expected integers", key, item.dump()),
                   where);
        }
        result.push_back(*number);
    }
    return result;
}

double read_rope_theta(const io::Json& json, const std::string& where) {
    const io::Json* scaling = json.find("rope_scaling");
    const io::Json* parameters = json.find("rope_parameters");
    for (const io::Json* rope : {scaling, parameters}) {
        if (rope == nullptr || rope->is_null()) {
            continue;
        }
        for (const std::string_view key : {"rope_type", "type"}) {
            const std::optional<std::string> type = rope->optional_string(key, where);
            if (type && *type != "default") {
                refuse(
                    fmt::format("{}: got \"{}\", expected \"default\": drafters use plain rotary "
                                "embeddings",
                                key,
                                *type),
                    where);
            }
        }
        refuse_extensions(*rope, where);
    }
    if (parameters != nullptr && parameters->find("rope_theta") != nullptr) {
        return parameters->require_number("rope_theta", where);
    }
    return json.require_number("rope_theta", where);
}

std::vector<LayerType> read_layer_types(const io::Json& json,
                                        std::int64_t num_layers,
                                        const std::string& where) {
    if (num_layers < 1 || num_layers > kMaxLayers) {
        refuse(fmt::format("num_hidden_layers: got {}, expected 1 to {}", num_layers, kMaxLayers),
               where);
    }
    const bool sliding_allowed = json.optional_bool("use_sliding_window", where).value_or(true);
    std::vector<LayerType> types;
    const io::Json* names = json.find("layer_types");
    if (names == nullptr || names->is_null()) {
        // Rule of transformers 5.24 Qwen3Config: layers from max_window_layers on are sliding.
        const bool sliding = json.optional_bool("use_sliding_window", where).value_or(false);
        const std::int64_t first =
            json.optional_integer("max_window_layers", where).value_or(num_layers);
        for (std::int64_t i = 0; i < num_layers; ++i) {
            types.push_back(sliding && i >= first ? LayerType::Sliding : LayerType::Full);
        }
        return types;
    }
    if (!names->is_array()) {
        refuse(fmt::format("layer_types: got {}, expected a list", names->kind_name()), where);
    }
    for (const io::Json& name : names->items()) {
        if (name.is_string() && name.as_string() == kFull) {
            types.push_back(LayerType::Full);
        } else if (name.is_string() && name.as_string() == kSliding) {
            if (!sliding_allowed) {
                refuse("layer_types has sliding_attention, but use_sliding_window is false", where);
            }
            types.push_back(LayerType::Sliding);
        } else {
            refuse(
                fmt::format(
                    "layer_types: got {}, expected \"{}\" or \"{}\"", name.dump(), kFull, kSliding),
                where);
        }
    }
    if (std::cmp_not_equal(types.size(), num_layers)) {
        refuse(fmt::format("layer_types: got {} entries, expected num_hidden_layers = {}",
                           types.size(),
                           num_layers),
               where);
    }
    return types;
}

/// The keys of dflash_config, each also accepted at top level (the nested one wins).
void read_dflash_config(const io::Json& json, const std::string& where, DraftConfig& config) {
    const io::Json none = io::Json::object();
    const io::Json* found = json.find("dflash_config");
    const io::Json& nested = found != nullptr && found->is_object() ? *found : none;
    refuse_extensions(nested, where + ": dflash_config");
    constexpr std::array<std::string_view, 5> kKnown{
        "block_size", "mask_token_id", "target_layer_ids", "causal", "num_target_layers"};
    for (const auto& [key, value] : nested.members()) {
        const bool extension =
            std::find(kExtensions.begin(), kExtensions.end(), key) != kExtensions.end();
        if (!extension && std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) {
            log_warning("{}: dflash_config.{} is not known and is ignored", where, key);
        }
    }
    const auto owner = [&](std::string_view key) -> const io::Json& {
        const io::Json* value = nested.find(key);
        return value != nullptr && !value->is_null() ? nested : json;
    };
    config.block_size =
        owner("block_size").optional_integer("block_size", where).value_or(config.block_size);
    config.mask_token_id = static_cast<TokenId>(std::clamp<std::int64_t>(
        owner("mask_token_id").require_integer("mask_token_id", where), -1, INT32_MAX));
    const io::Json* ids = owner("target_layer_ids").find("target_layer_ids");
    if (ids == nullptr || ids->is_null()) {
        refuse("dflash_config.target_layer_ids: got none, expected a list of layer ids", where);
    }
    config.target_layer_ids = integer_list(*ids, "target_layer_ids", where);
    // Order of vLLM `_dflash_layer_causal`: the top-level key, then dflash_config.causal.
    config.is_causal = json.optional_bool("is_causal", where);
    if (!config.is_causal) {
        config.is_causal = nested.optional_bool("causal", where);
    }
}

}  // namespace

DraftConfig DraftConfig::from_json(const io::Json& json, const std::string& where) {
    if (!json.is_object()) {
        refuse(fmt::format("got {}, expected an object", json.kind_name()), where);
    }
    if (is_speculators(json)) {
        return from_json(from_speculators(json, where), where);
    }
    refuse_extensions(json, where);
    refuse_other_architectures(json, where);
    require_bool(json, "attention_bias", false, where);
    const std::string act = json.optional_string("hidden_act", where).value_or("silu");
    if (act != "silu") {
        refuse(fmt::format("hidden_act: got \"{}\", expected \"silu\"", act), where);
    }

    DraftConfig config;
    config.hidden_size = json.require_integer("hidden_size", where);
    config.intermediate_size = json.require_integer("intermediate_size", where);
    config.num_heads = json.require_integer("num_attention_heads", where);
    config.num_kv_heads =
        json.optional_integer("num_key_value_heads", where).value_or(config.num_heads);
    // Without the key the head size follows from the others, as in transformers 5.24.
    config.head_dim =
        json.optional_integer("head_dim", where)
            .value_or(config.num_heads > 0 ? config.hidden_size / config.num_heads : 0);
    config.vocab_size = json.require_integer("vocab_size", where);
    config.num_target_layers = json.optional_integer("num_target_layers", where).value_or(0);
    config.layer_types =
        read_layer_types(json, json.require_integer("num_hidden_layers", where), where);
    const bool any_sliding =
        std::count(config.layer_types.begin(), config.layer_types.end(), LayerType::Sliding) > 0;
    config.sliding_window =
        any_sliding ? json.optional_integer("sliding_window", where).value_or(0) : 0;
    config.rms_norm_eps = json.require_number("rms_norm_eps", where);
    config.rope_theta = read_rope_theta(json, where);
    config.max_position_embeddings = json.optional_integer("max_position_embeddings", where)
                                         .value_or(config.max_position_embeddings);
    config.bos_token_id = json.optional_integer("bos_token_id", where).value_or(-1);
    if (config.bos_token_id < -1) {
        refuse(
            fmt::format("bos_token_id: got {}, expected 0 or more, or null", config.bos_token_id),
            where);
    }
    const io::Json* eos = json.find("eos_token_id");
    if (eos != nullptr && eos->is_array()) {
        config.eos_token_ids = integer_list(*eos, "eos_token_id", where);
    } else if (const auto id = json.optional_integer("eos_token_id", where)) {
        config.eos_token_ids = {*id};
    }
    config.initializer_range =
        json.optional_number("initializer_range", where).value_or(config.initializer_range);
    read_dflash_config(json, where, config);
    config.validate(where);
    return config;
}

io::Json DraftConfig::to_json() const {
    using io::Json;
    const bool any_sliding =
        std::count(layer_types.begin(), layer_types.end(), LayerType::Sliding) > 0;
    std::vector<Json> types;
    for (const LayerType type : layer_types) {
        types.push_back(Json::string(std::string(type == LayerType::Sliding ? kSliding : kFull)));
    }
    std::vector<Json> ids;
    for (const std::int64_t id : target_layer_ids) {
        ids.push_back(Json::integer(id));
    }
    Json dflash = Json::object();
    dflash.set("block_size", Json::integer(block_size));
    dflash.set("mask_token_id", Json::integer(mask_token_id));
    dflash.set("target_layer_ids", Json::array(std::move(ids)));

    Json json = Json::object();
    json.set("architectures", Json::array({Json::string("DFlashDraftModel")}));
    json.set("attention_bias", Json::boolean(false));
    json.set("attention_dropout", Json::number(0.0));
    json.set("block_size", Json::integer(block_size));
    if (bos_token_id >= 0) {
        json.set("bos_token_id", Json::integer(bos_token_id));
    }
    json.set("dflash_config", std::move(dflash));
    json.set("dtype", Json::string("bfloat16"));
    if (eos_token_ids.size() == 1) {
        json.set("eos_token_id", Json::integer(eos_token_ids.front()));
    } else if (!eos_token_ids.empty()) {
        std::vector<Json> eos;
        for (const std::int64_t id : eos_token_ids) {
            eos.push_back(Json::integer(id));
        }
        json.set("eos_token_id", Json::array(std::move(eos)));
    }
    json.set("head_dim", Json::integer(head_dim));
    json.set("hidden_act", Json::string("silu"));
    json.set("hidden_size", Json::integer(hidden_size));
    json.set("initializer_range", Json::number(initializer_range));
    json.set("intermediate_size", Json::integer(intermediate_size));
    if (is_causal) {
        json.set("is_causal", Json::boolean(*is_causal));
    }
    json.set("layer_types", Json::array(std::move(types)));
    json.set("max_position_embeddings", Json::integer(max_position_embeddings));
    // Of the two rules for sliding layers, layer_types and max_window_layers, the list decides.
    json.set("max_window_layers", Json::integer(num_layers()));
    json.set("model_type", Json::string("qwen3"));
    json.set("num_attention_heads", Json::integer(num_heads));
    json.set("num_hidden_layers", Json::integer(num_layers()));
    json.set("num_key_value_heads", Json::integer(num_kv_heads));
    json.set("num_target_layers", Json::integer(num_target_layers));
    json.set("rms_norm_eps", Json::number(rms_norm_eps));
    json.set("rope_scaling", Json());
    json.set("rope_theta", Json::number(rope_theta));
    json.set("sliding_window", any_sliding ? Json::integer(sliding_window) : Json());
    json.set("tie_word_embeddings", Json::boolean(false));
    json.set("use_cache", Json::boolean(true));
    json.set("use_sliding_window", Json::boolean(any_sliding));
    json.set("vocab_size", Json::integer(vocab_size));
    return json;
}

void DraftConfig::validate(const std::string& where) const {
    const auto at_least = [&](std::string_view key, std::int64_t value, std::int64_t bound) {
        if (value < bound) {
            refuse(fmt::format("{}: got {}, expected {} or more", key, value, bound), where);
        }
    };
    at_least("hidden_size", hidden_size, 1);
    at_least("intermediate_size", intermediate_size, 1);
    at_least("num_attention_heads", num_heads, 1);
    at_least("num_key_value_heads", num_kv_heads, 1);
    at_least("head_dim", head_dim, 2);
    at_least("vocab_size", vocab_size, 1);
    at_least("block_size", block_size, 2);
    at_least("num_hidden_layers", num_layers(), 1);
    at_least("number of target_layer_ids", num_features(), 1);
    at_least("num_target_layers", num_target_layers, 0);  // 0: not known
    if (num_heads % num_kv_heads != 0) {
        refuse(
            fmt::format("num_attention_heads: got {}, expected a multiple of num_key_value_heads "
                        "= {}",
                        num_heads,
                        num_kv_heads),
            where);
    }
    if (head_dim % 2 != 0) {
        refuse(fmt::format("head_dim: got {}, expected an even number", head_dim), where);
    }
    if (mask_token_id < 0 || mask_token_id >= vocab_size) {
        refuse(fmt::format("mask_token_id: got {}, expected a row of the embedding, 0 to {}",
                           mask_token_id,
                           vocab_size - 1),
               where);
    }
    for (std::size_t i = 0; i < target_layer_ids.size(); ++i) {
        const std::int64_t id = target_layer_ids[i];
        if (id < 0 || (num_target_layers > 0 && id >= num_target_layers)) {
            refuse(
                fmt::format(
                    "target_layer_ids: got {}, expected layers 0 to {}", id, num_target_layers - 1),
                where);
        }
        if (std::count(target_layer_ids.begin(), target_layer_ids.end(), id) > 1) {
            refuse(fmt::format("target_layer_ids: layer {} is listed twice", id), where);
        }
    }
    const bool any_sliding =
        std::count(layer_types.begin(), layer_types.end(), LayerType::Sliding) > 0;
    if (any_sliding) {
        at_least("sliding_window", sliding_window, 1);
    }
    if (!(rms_norm_eps > 0) || !std::isfinite(rms_norm_eps)) {
        refuse(fmt::format("rms_norm_eps: got {}, expected more than 0", rms_norm_eps), where);
    }
    if (!(rope_theta > 1) || !std::isfinite(rope_theta)) {
        refuse(fmt::format("rope_theta: got {}, expected more than 1", rope_theta), where);
    }
    if (!(initializer_range > 0) || !std::isfinite(initializer_range)) {
        refuse(fmt::format("initializer_range: got {}, expected more than 0", initializer_range),
               where);
    }
}

std::vector<std::int64_t> default_target_layer_ids(std::int64_t num_target_layers,
                                                   std::int64_t count) {
    if (count == 1) {
        return {num_target_layers / 2};
    }
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < count; ++i) {
        // nearbyint rounds halves to even, as Python does.
        const double value =
            1.0 + static_cast<double>(i * (num_target_layers - 4)) / static_cast<double>(count - 1);
        ids.push_back(static_cast<std::int64_t>(std::nearbyint(value)));
    }
    return ids;
}

std::int64_t WeightSpec::num_elements() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t num_parameters(const DraftConfig& config) {
    std::int64_t total = 0;
    for (const WeightSpec& spec : weight_specs(config)) {
        total += spec.num_elements();
    }
    return total;
}

std::vector<WeightSpec> weight_specs(const DraftConfig& config) {
    const std::int64_t H = config.hidden_size;
    const std::int64_t I = config.intermediate_size;
    const std::int64_t q = config.num_heads * config.head_dim;
    const std::int64_t kv = config.num_kv_heads * config.head_dim;
    std::vector<WeightSpec> specs;
    for (std::int64_t i = 0; i < config.num_layers(); ++i) {
        const std::string layer = fmt::format("layers.{}.", i);
        specs.push_back({layer + "input_layernorm.weight", {H}});
        specs.push_back({layer + "self_attn.q_proj.weight", {q, H}});
        specs.push_back({layer + "self_attn.k_proj.weight", {kv, H}});
        specs.push_back({layer + "self_attn.v_proj.weight", {kv, H}});
        specs.push_back({layer + "self_attn.o_proj.weight", {H, q}});
        specs.push_back({layer + "self_attn.q_norm.weight", {config.head_dim}});
        specs.push_back({layer + "self_attn.k_norm.weight", {config.head_dim}});
        specs.push_back({layer + "post_attention_layernorm.weight", {H}});
        specs.push_back({layer + "mlp.gate_proj.weight", {I, H}});
        specs.push_back({layer + "mlp.up_proj.weight", {I, H}});
        specs.push_back({layer + "mlp.down_proj.weight", {H, I}});
    }
    specs.push_back({"fc.weight", {H, config.num_features() * H}});
    specs.push_back({"hidden_norm.weight", {H}});
    specs.push_back({"norm.weight", {H}});
    return specs;
}

}  // namespace dflash::model
