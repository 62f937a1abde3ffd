// SPDX-License-Identifier: Apache-2.0
// Reading of config.json. Whatever changes the forward is either read or refused by name; keys that
// this program does not know are named in a warning.
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/target/config.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <string_view>

namespace dflash::target {
namespace {

using io::Json;

struct SupportedArchitecture {
    std::string_view name;
    std::string_view model_type;
    Family family;
};

constexpr std::array kSupported = {
    SupportedArchitecture{"LlamaForCausalLM", "llama", Family::Llama},
    SupportedArchitecture{"Qwen3ForCausalLM", "qwen3", Family::Qwen3},
};

// Sizes beyond this are no model, and products of two of them stay far inside int64.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 28;

constexpr auto kReadKeys = std::to_array<std::string_view>({
    "architectures",
    "attention_bias",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "max_window_layers",
    "mlp_bias",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "partial_rotary_factor",
    "quantization_config",
    "rms_norm_eps",
    "rope_interleaved",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "torch_dtype",
    "use_sliding_window",
    "vocab_size",
});

// Keys without influence on the forward of a frozen model: training, generation, book-keeping.
// `pretraining_tp` only splits the same products.
constexpr auto kHarmlessKeys = std::to_array<std::string_view>({
    "_attn_implementation_autoset",
    "_name_or_path",
    "attention_dropout",
    "initializer_range",
    "is_llama_config",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",
    "return_dict",
    "transformers.js_config",
    "transformers_version",
    "use_cache",
});

constexpr auto kRopeKeys = std::to_array<std::string_view>({
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "truncate",
    "type",
});

bool contains(std::span<const std::string_view> list, std::string_view key) {
    return std::find(list.begin(), list.end(), key) != list.end();
}

[[noreturn]] void fail(std::string what, const std::string& where, std::string hint = {}) {
    throw Error(ErrorKind::Config,
                {.what = std::move(what), .where = where, .cause = {}, .hint = std::move(hint)});
}

[[noreturn]] void refuse(const std::string& what, const std::string& where) {
    fail(what, where, "Use a target without it; nothing of a target's configuration is ignored");
}

const Json* present(const Json& json, std::string_view key) {
    const Json* value = json.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
}

std::int64_t require_size(const Json& json, std::string_view key, const std::string& where) {
    const std::int64_t value = json.require_integer(key, where);
    if (value < 1 || value > kLargestSize) {
        fail(fmt::format("{}: got {}, expected 1 to {}", key, value, kLargestSize), where);
    }
    return value;
}

std::int64_t size_or(const Json& json,
                     std::string_view key,
                     std::int64_t absent,
                     const std::string& where) {
    return present(json, key) == nullptr ? absent : require_size(json, key, where);
}

void read_architecture(const Json& json, const std::string& where, TargetConfig& config) {
    const Json* list = present(json, "architectures");
    config.model_type = json.optional_string("model_type", where).value_or("");
    if (list != nullptr && list->is_array() && list->items().size() == 1 &&
        list->items()[0].is_string()) {
        config.architecture = list->items()[0].as_string();
    } else if (list != nullptr) {
        fail(fmt::format("architectures: got {}, expected a list of one name", quote(list->dump())),
             where);
    } else {
        // Some tools leave the class out; the model type names it as well.
        for (const SupportedArchitecture& known : kSupported) {
            if (known.model_type == config.model_type) {
                config.architecture = known.name;
            }
        }
    }
    for (const SupportedArchitecture& known : kSupported) {
        if (known.name == config.architecture) {
            if (!config.model_type.empty() && config.model_type != known.model_type) {
                fail(fmt::format("model_type: got {}, expected \"{}\" for architecture {}",
                                 quote(config.model_type),
                                 known.model_type,
                                 known.name),
                     where);
            }
            config.model_type = known.model_type;
            config.family = known.family;
            return;
        }
    }
    std::vector<std::string> names;
    for (const SupportedArchitecture& known : kSupported) {
        names.emplace_back(known.name);
    }
    const std::string got =
        config.architecture.empty()
            ? fmt::format("model_type {} without architectures", quote(config.model_type))
            : quote(config.architecture);
    fail(fmt::format("unsupported target architecture: got {}, expected one of {}",
                     got,
                     fmt::join(names, ", ")),
         where,
         "Choose a target of a supported architecture with --target");
}

void refuse_unsupported_features(const Json& json,
                                 const std::string& where,
                                 const TargetConfig& config) {
    for (const std::string_view key : {"quantization_config", "compression_config"}) {
        if (const Json* value = present(json, key)) {
            const std::string method = value->optional_string("quant_method", where).value_or("");
            refuse(fmt::format("{}{}: quantised targets are not supported",
                               key,
                               method.empty() ? "" : fmt::format(" ({})", method)),
                   where);
        }
    }
    for (const std::string_view key : {"attention_bias", "mlp_bias", "rope_interleaved"}) {
        if (json.optional_bool(key, where).value_or(false)) {
            refuse(fmt::format("{}: got true, only false is supported", key), where);
        }
    }
    const std::string activation = json.optional_string("hidden_act", where).value_or("silu");
    if (activation != "silu") {
        refuse(fmt::format("hidden_act: got {}, only \"silu\" is supported", quote(activation)),
               where);
    }

    // transformers applies a window of Qwen3 only if use_sliding_window is set, and then from
    // layer max_window_layers on (28 if absent), unless layer_types says otherwise. Llama has none.
    const auto window = json.optional_integer("sliding_window", where);
    const Json* layer_types = present(json, "layer_types");
    if (layer_types != nullptr) {
        if (!layer_types->is_array() ||
            layer_types->items().size() != static_cast<std::size_t>(config.num_layers)) {
            fail(fmt::format("layer_types: expected a list of {} names, as "
                             "num_hidden_layers says",
                             config.num_layers),
                 where);
        }
        for (std::size_t i = 0; i < layer_types->items().size(); ++i) {
            const Json& type = layer_types->items()[i];
            if (!type.is_string() || type.as_string() != "full_attention") {
                refuse(fmt::format("layer_types[{}]: got {}, only \"full_attention\" is supported",
                                   i,
                                   quote(type.dump())),
                       where);
            }
        }
    } else if (window.has_value()) {
        const bool used = config.family == Family::Llama
                              ? json.optional_bool("use_sliding_window", where).value_or(true)
                              : json.optional_bool("use_sliding_window", where).value_or(false);
        const std::int64_t first_windowed =
            config.family == Family::Llama
                ? 0
                : json.optional_integer("max_window_layers", where).value_or(28);
        if (used && first_windowed < config.num_layers) {
            refuse(fmt::format("sliding_window: got {} for layers {} to {}, sliding windows are "
                               "not supported",
                               *window,
                               first_windowed,
                               config.num_layers - 1),
                   where);
        }
    }
}

RopeKind rope_kind(const std::string& name, const std::string& where) {
    if (name == "default") {
        return RopeKind::Default;
    }
    if (name == "linear") {
        return RopeKind::Linear;
    }
    if (name == "llama3") {
        return RopeKind::Llama3;
    }
    if (name == "yarn") {
        return RopeKind::Yarn;
    }
    refuse(fmt::format("rope_type: got {}, only default, linear, llama3 and yarn are supported",
                       quote(name)),
           where);
}

double positive(const Json& json, std::string_view key, const std::string& where) {
    const double value = json.require_number(key, where);
    if (!(value > 0)) {
        fail(fmt::format("{}: got {}, expected more than 0", key, value), where);
    }
    return value;
}

// The dictionary of the scaling: `rope_parameters` (transformers 5) or `rope_scaling` (before).
const Json* rope_dictionary(const Json& json, const std::string& where, std::string& key) {
    const Json* parameters = present(json, "rope_parameters");
    const Json* scaling = present(json, "rope_scaling");
    if (parameters != nullptr && scaling != nullptr && !(*parameters == *scaling)) {
        fail("rope_parameters and rope_scaling are both there and differ",
             where,
             "Delete the one that does not hold");
    }
    key = parameters != nullptr ? "rope_parameters" : "rope_scaling";
    const Json* dictionary = parameters != nullptr ? parameters : scaling;
    if (dictionary != nullptr && !dictionary->is_object()) {
        fail(fmt::format("{}: got {}, expected an object", key, dictionary->kind_name()), where);
    }
    return dictionary;
}

RopeConfig read_rope(const Json& json, const std::string& config_path, double max_position) {
    RopeConfig rope;
    std::string key;
    const Json* dictionary = rope_dictionary(json, config_path, key);
    const Json empty = Json::object();
    const Json& dict = dictionary == nullptr ? empty : *dictionary;
    const std::string where = fmt::format("{}: {}", config_path, key);

    for (const auto& [name, value] : dict.members()) {
        if (!contains(kRopeKeys, name)) {
            refuse(fmt::format(
                       "{}: unknown key {} with value {}", key, quote(name), quote(value.dump())),
                   config_path);
        }
    }
    const auto type = dict.optional_string("rope_type", where);
    const auto old_type = dict.optional_string("type", where);
    if (type && old_type && *type != *old_type) {
        fail(fmt::format("rope_type {} and type {} differ", quote(*type), quote(*old_type)), where);
    }
    rope.kind = rope_kind(type.value_or(old_type.value_or("default")), where);

    const auto top_theta = json.optional_number("rope_theta", config_path);
    const auto theta = dict.optional_number("rope_theta", where);
    if (top_theta && theta && *top_theta != *theta) {
        fail(fmt::format("rope_theta: got {} at the top and {} in {}, expected one value",
                         *top_theta,
                         *theta,
                         key),
             config_path);
    }
    // Both classes of transformers default to 1e4.
    rope.theta = theta.value_or(top_theta.value_or(10000));
    if (!(rope.theta > 1)) {
        fail(fmt::format("rope_theta: got {}, expected more than 1", rope.theta), config_path);
    }
    for (const Json* place : {&json, &dict}) {
        const double part =
            place->optional_number("partial_rotary_factor", config_path).value_or(1);
        if (part != 1) {
            refuse(fmt::format("partial_rotary_factor: got {}, only 1 is supported", part),
                   config_path);
        }
    }

    if (rope.kind == RopeKind::Default) {
        return rope;
    }
    rope.factor = positive(dict, "factor", where);
    if (rope.factor < 1) {
        fail(fmt::format("factor: got {}, expected 1 or more", rope.factor), where);
    }
    if (rope.kind == RopeKind::Llama3) {
        rope.low_freq_factor = positive(dict, "low_freq_factor", where);
        rope.high_freq_factor = positive(dict, "high_freq_factor", where);
        rope.original_max_position = positive(dict, "original_max_position_embeddings", where);
        if (rope.high_freq_factor <= rope.low_freq_factor) {
            fail(fmt::format("high_freq_factor: got {}, expected more than "
                             "low_freq_factor ({})",
                             rope.high_freq_factor,
                             rope.low_freq_factor),
                 where);
        }
    } else if (rope.kind == RopeKind::Yarn) {
        rope.original_max_position =
            present(dict, "original_max_position_embeddings") == nullptr
                ? max_position
                : positive(dict, "original_max_position_embeddings", where);
        const auto positive_or = [&](std::string_view name, double absent) {
            return present(dict, name) == nullptr ? absent : positive(dict, name, where);
        };
        rope.beta_fast = positive_or("beta_fast", 32);
        rope.beta_slow = positive_or("beta_slow", 1);
        if (rope.beta_fast < rope.beta_slow) {
            fail(fmt::format("beta_fast: got {}, expected beta_slow ({}) or more",
                             rope.beta_fast,
                             rope.beta_slow),
                 where);
        }
        rope.truncate = dict.optional_bool("truncate", where).value_or(true);
        rope.attention_factor = dict.optional_number("attention_factor", where);
        rope.mscale = dict.optional_number("mscale", where);
        rope.mscale_all_dim = dict.optional_number("mscale_all_dim", where);
        if (rope.attention_factor && !(*rope.attention_factor > 0)) {
            positive(dict, "attention_factor", where);
        }
    }
    return rope;
}

std::vector<std::int64_t> read_token_list(const Json& json,
                                          std::string_view key,
                                          const std::string& where) {
    const Json* value = present(json, key);
    if (value == nullptr) {
        return {};
    }
    if (!value->is_array()) {
        return {json.require_integer(key, where)};
    }
    std::vector<std::int64_t> ids;
    for (const Json& item : value->items()) {
        const auto id = item.is_number() ? item.to_integer() : std::nullopt;
        if (!id) {
            fail(fmt::format("{}: got {}, expected an integer or a list of integers",
                             key,
                             quote(value->dump())),
                 where);
        }
        ids.push_back(*id);
    }
    return ids;
}

void warn_of_unknown_keys(const Json& json, const std::string& where) {
    std::vector<std::string> unknown;
    for (const auto& [key, value] : json.members()) {
        if (!contains(kReadKeys, key) && !contains(kHarmlessKeys, key)) {
            unknown.push_back(fmt::format("{} = {}", key, quote(value.dump(), 40)));
        }
    }
    if (!unknown.empty()) {
        log_warning("{}: {} not known to this program and not used: {}",
                    where,
                    unknown.size() == 1 ? "a key is" : "keys are",
                    fmt::join(unknown, ", "));
    }
}

// A flag that transformers defaults to false for both classes.
bool read_tied(const Json& json, const std::string& where, bool& by_default) {
    const auto tied = json.optional_bool("tie_word_embeddings", where);
    by_default = !tied.has_value();
    return tied.value_or(false);
}

}  // namespace

TargetConfig TargetConfig::read(const std::string& folder) {
    namespace fs = std::filesystem;
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored)) {
        fail("the target's folder does not exist",
             folder,
             "Give a folder of a Hugging Face model, or an id ORG/NAME");
    }
    const std::string where = (fs::path(folder) / "config.json").string();
    if (!fs::is_regular_file(where, ignored)) {
        fail("the target's folder has no config.json",
             folder,
             "Give a folder of a Hugging Face model: config.json and "
             "*.safetensors");
    }
    const Json json = io::read_json_file(where);
    if (!json.is_object()) {
        fail(fmt::format("got {}, expected an object", json.kind_name()), where);
    }

    TargetConfig config;
    read_architecture(json, where, config);
    config.hidden_size = require_size(json, "hidden_size", where);
    config.intermediate_size = require_size(json, "intermediate_size", where);
    config.num_layers = require_size(json, "num_hidden_layers", where);
    config.num_heads = require_size(json, "num_attention_heads", where);
    config.vocab_size = require_size(json, "vocab_size", where);
    // Defaults of LlamaConfig and Qwen3Config in transformers.
    const bool llama = config.family == Family::Llama;
    config.num_kv_heads =
        size_or(json, "num_key_value_heads", llama ? config.num_heads : 32, where);
    config.head_dim =
        size_or(json, "head_dim", llama ? config.hidden_size / config.num_heads : 128, where);
    config.max_position_embeddings =
        size_or(json, "max_position_embeddings", llama ? 2048 : 32768, where);
    config.rms_norm_eps = json.optional_number("rms_norm_eps", where).value_or(1e-6);
    if (!(config.rms_norm_eps > 0)) {
        fail(fmt::format("rms_norm_eps: got {}, expected more than 0", config.rms_norm_eps), where);
    }
    if (config.num_heads % config.num_kv_heads != 0) {
        fail(fmt::format("num_attention_heads: got {}, expected a multiple of "
                         "num_key_value_heads ({})",
                         config.num_heads,
                         config.num_kv_heads),
             where);
    }
    if (config.head_dim % 2 != 0) {
        fail(fmt::format("head_dim: got {}, expected an even number", config.head_dim), where);
    }
    refuse_unsupported_features(json, where, config);
    config.tied = read_tied(json, where, config.tied_by_default);
    config.rope = read_rope(json, where, static_cast<double>(config.max_position_embeddings));
    const std::vector<std::int64_t> bos = read_token_list(json, "bos_token_id", where);
    config.bos_token_id = bos.empty() ? -1 : bos.front();
    config.eos_token_ids = read_token_list(json, "eos_token_id", where);
    config.dtype = json.optional_string("dtype", where)
                       .value_or(json.optional_string("torch_dtype", where).value_or(""));
    warn_of_unknown_keys(json, where);
    return config;
}

std::int64_t TargetConfig::num_parameters(std::int64_t layers, bool with_ends) const {
    const std::int64_t q_rows = num_heads * head_dim;
    const std::int64_t kv_rows = num_kv_heads * head_dim;
    const std::int64_t attention = hidden_size * (2 * q_rows + 2 * kv_rows);
    const std::int64_t mlp = 3 * hidden_size * intermediate_size;
    const std::int64_t norms = 2 * hidden_size + (family == Family::Qwen3 ? 2 * head_dim : 0);
    const std::int64_t ends =
        with_ends ? (tied ? 1 : 2) * vocab_size * hidden_size + hidden_size : 0;
    return layers * (attention + mlp + norms) + ends;
}

}  // namespace dflash::target
