// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/io/json.hpp>
#include <dflash/train/draft_choice.hpp>
#include <dflash/train/draft_fit.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dflash::train {
namespace {

[[noreturn]] void reject(std::string what, std::string hint = {}) {
    throw Error(ErrorKind::Config,
                {.what = std::move(what), .where = {}, .cause = {}, .hint = std::move(hint)});
}

// Key/value heads: a quarter of the query heads, moved to the nearest divisor so that the ratio is
// whole.
std::int64_t quarter_with_whole_ratio(std::int64_t num_heads) {
    std::int64_t best = 1;
    for (std::int64_t candidate = 1; candidate <= num_heads; ++candidate) {
        if (num_heads % candidate == 0 &&
            std::abs(4 * candidate - num_heads) < std::abs(4 * best - num_heads)) {
            best = candidate;
        }
    }
    return best;
}

model::DraftConfig by_rule(const target::TargetConfig& target) {
    model::DraftConfig config;
    config.hidden_size = target.hidden_size;
    config.intermediate_size = target.intermediate_size;
    config.head_dim = target.hidden_size < 1024 ? 64 : 128;
    if (target.head_dim == config.head_dim) {
        config.num_heads = target.num_heads;
        config.num_kv_heads = target.num_kv_heads;
    } else {
        config.num_heads = std::max<std::int64_t>(1, target.hidden_size / config.head_dim);
        config.num_kv_heads = quarter_with_whole_ratio(config.num_heads);
    }
    config.layer_types.assign(5, model::LayerType::Full);
    config.rms_norm_eps = target.rms_norm_eps;
    config.rope_theta = target.rope.theta;
    return config;
}

// What follows from the target whatever the drafter.
void take_from_target(model::DraftConfig& config, const target::TargetConfig& target) {
    config.vocab_size = target.vocab_size;
    config.num_target_layers = target.num_layers;
    config.max_position_embeddings = target.max_position_embeddings;
    config.bos_token_id = target.bos_token_id;
    config.eos_token_ids = target.eos_token_ids;
}

template <class T>
void apply(const std::optional<T>& setting, T& field, const char* name, bool fixed) {
    if (!setting) {
        return;
    }
    if (fixed && *setting != field) {
        if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
            reject(fmt::format("draft.{}: got [{}], but the drafter to start from has [{}]",
                               name,
                               fmt::join(*setting, ", "),
                               fmt::join(field, ", ")),
                   "Leave the setting out, or train from random weights without --init");
        } else {
            reject(fmt::format("draft.{}: got {}, but the drafter to start from has {}",
                               name,
                               *setting,
                               field),
                   "Leave the setting out, or train from random weights without --init");
        }
    }
    field = *setting;
}

void apply_layers(const DraftSettings& settings, model::DraftConfig& config, bool fixed) {
    std::int64_t num_layers = config.num_layers();
    apply(settings.num_layers, num_layers, "num_layers", fixed);
    if (num_layers != config.num_layers()) {
        config.layer_types.assign(static_cast<std::size_t>(num_layers), model::LayerType::Full);
    }
    if (settings.sliding_layers) {
        std::vector<std::int64_t> current;
        for (std::int64_t i = 0; i < num_layers; ++i) {
            if (config.layer_types[static_cast<std::size_t>(i)] == model::LayerType::Sliding) {
                current.push_back(i);
            }
        }
        apply(settings.sliding_layers, current, "sliding_layers", fixed);
        std::fill(config.layer_types.begin(), config.layer_types.end(), model::LayerType::Full);
        for (const std::int64_t layer : current) {
            if (layer >= num_layers) {
                reject(fmt::format(
                    "draft.sliding_layers: got layer {}, expected 0 to {}", layer, num_layers - 1));
            }
            config.layer_types[static_cast<std::size_t>(layer)] = model::LayerType::Sliding;
        }
    }
    const bool any_sliding =
        std::count(
            config.layer_types.begin(), config.layer_types.end(), model::LayerType::Sliding) > 0;
    if (!any_sliding) {
        if (settings.sliding_window) {
            reject("draft.sliding_window is set, but no layer slides",
                   "Name the layers in draft.sliding_layers");
        }
        config.sliding_window = 0;
        return;
    }
    if (config.sliding_window == 0) {
        config.sliding_window = 2048;
    }
    apply(settings.sliding_window, config.sliding_window, "sliding_window", fixed);
}

}  // namespace

void check_fits(const model::DraftConfig& config,
                const target::TargetConfig& target,
                const std::string& origin) {
    const auto must_match = [&](const char* what, std::int64_t draft, std::int64_t expected) {
        if (draft != expected) {
            reject(fmt::format(
                       "{} of the drafter is {}, but the target has {}", what, draft, expected),
                   fmt::format("The drafter ({}) belongs to another target", origin));
        }
    };
    must_match("hidden_size", config.hidden_size, target.hidden_size);
    must_match("vocab_size", config.vocab_size, target.vocab_size);
    must_match("num_target_layers", config.num_target_layers, target.num_layers);
    for (const std::int64_t id : config.target_layer_ids) {
        if (id >= target.num_layers - 1) {
            reject(
                fmt::format(
                    "draft.target_layer_ids: got {}, expected 0 to {}", id, target.num_layers - 2),
                "The last layer is left out: some servers hand out its output after the final "
                "norm, others before");
        }
    }
    if (config.mask_token_id < 0 || config.mask_token_id >= target.vocab_size) {
        reject(fmt::format("draft.mask_token_id: got {}, expected a row of the embedding, 0 to {}",
                           config.mask_token_id,
                           target.vocab_size - 1));
    }
}

std::optional<model::DraftConfig> published_drafter(const target::TargetConfig& target,
                                                    const std::string& target_name) {
    const bool qwen3_4b =
        target.model_type == "qwen3" && target.hidden_size == 2560 && target.num_layers == 36;
    const bool qwen3_8b =
        target.model_type == "qwen3" && target.hidden_size == 4096 && target.num_layers == 36;
    const bool dense_27b = target.model_type.starts_with("qwen3_5") && target.hidden_size == 5120 &&
                           target.num_layers == 64 && target.vocab_size == 248320;
    const bool qwen35_27b = dense_27b && target_name.find("3.5") != std::string::npos;
    const bool qwen36_27b = dense_27b && target_name.find("3.6") != std::string::npos;
    if (!qwen3_4b && !qwen3_8b && !qwen35_27b && !qwen36_27b) {
        return std::nullopt;
    }
    model::DraftConfig config;
    config.hidden_size = target.hidden_size;
    config.num_heads = 32;
    config.num_kv_heads = 8;
    config.head_dim = 128;
    config.block_size = 16;
    config.rms_norm_eps = 1e-6;
    config.layer_types.assign(5, model::LayerType::Full);
    take_from_target(config, target);
    if (dense_27b) {
        config.intermediate_size = 17408;
        config.target_layer_ids = {1, 16, 31, 46, 61};
        config.mask_token_id = 248070;
        config.rope_theta = 1e7;
        config.eos_token_ids = {248044};
        if (qwen36_27b) {
            std::fill(config.layer_types.begin(),
                      config.layer_types.begin() + 4,
                      model::LayerType::Sliding);
            config.sliding_window = 2048;
        }
    } else {
        config.intermediate_size = qwen3_4b ? 9728 : 12288;
        config.target_layer_ids = {1, 9, 17, 25, 33};
        config.mask_token_id = 151669;
        config.rope_theta = target.rope.theta;
    }
    return config;
}

TokenId mask_token_by_rule(const target::TargetConfig& target,
                           const data::Tokenizer& tokenizer,
                           const data::ChatFormat& format,
                           std::int64_t last_defined) {
    const std::int64_t first_free = std::max(tokenizer.num_ids(), last_defined + 1);
    if (first_free < target.vocab_size) {
        return static_cast<TokenId>(first_free);
    }
    const std::vector<std::string> used = format.used_tokens();
    // Marks that a user named may hold several tokens, and text between them.
    const auto is_used = [&](const std::string& content) {
        return std::any_of(used.begin(), used.end(), [&](const std::string& text) {
            return text.find(content) != std::string::npos;
        });
    };
    TokenId best = -1;
    for (const data::AddedToken& token : tokenizer.added_tokens()) {
        const bool ends_text =
            std::find(target.eos_token_ids.begin(), target.eos_token_ids.end(), token.id) !=
            target.eos_token_ids.end();
        if (token.special && !ends_text && token.id != target.bos_token_id &&
            !is_used(token.content)) {
            best = std::max(best, token.id);
        }
    }
    if (best < 0) {
        reject(fmt::format("no free mask token: the tokenizer defines all {} rows of the embedding "
                           "and the {} format uses all "
                           "special tokens",
                           target.vocab_size,
                           format.name()),
               "Choose a token that never occurs in the data with draft.mask_token_id");
    }
    return best;
}

std::int64_t last_id_of_tokenizer_config(const std::string& folder) {
    const std::filesystem::path path = std::filesystem::path(folder) / "tokenizer_config.json";
    if (!std::filesystem::exists(path)) {
        return -1;
    }
    const io::Json json = io::read_json_file(path.string());
    std::int64_t last = -1;
    if (const io::Json* tokens = json.find("added_tokens_decoder");
        tokens != nullptr && tokens->is_object()) {
        for (const auto& [id_text, token] : tokens->members()) {
            std::int64_t id = -1;
            std::from_chars(id_text.data(), id_text.data() + id_text.size(), id);
            last = std::max(last, id);
        }
    }
    return last;
}

DraftChoice choose_drafter(const DraftSettings& settings,
                           const std::optional<DraftChoice>& init,
                           const target::TargetConfig& target,
                           const target::TargetLocation& location,
                           const data::Tokenizer& tokenizer,
                           const data::ChatFormat& format) {
    DraftChoice choice;
    if (init) {
        choice = *init;
        if (choice.config.num_target_layers == 0) {
            choice.config.num_target_layers = target.num_layers;  // speculators does not keep it
        }
    } else if (const auto published = published_drafter(target, location.name)) {
        choice = {*published, "the published drafter of " + location.name};
    } else {
        choice = {by_rule(target), "by rule from the target"};
        take_from_target(choice.config, target);
    }
    model::DraftConfig& config = choice.config;
    const bool fixed = init.has_value();
    apply(settings.intermediate_size, config.intermediate_size, "intermediate_size", fixed);
    apply(settings.num_heads, config.num_heads, "num_heads", fixed);
    apply(settings.num_kv_heads, config.num_kv_heads, "num_kv_heads", fixed);
    apply(settings.head_dim, config.head_dim, "head_dim", fixed);
    apply_layers(settings, config, fixed);
    apply(settings.target_layer_ids, config.target_layer_ids, "target_layer_ids", fixed);
    apply(settings.block_size, config.block_size, "block_size", /*fixed=*/false);
    if (config.target_layer_ids.empty()) {
        const std::int64_t count =
            std::min<std::int64_t>(5, std::max<std::int64_t>(1, target.num_layers - 3));
        config.target_layer_ids = model::default_target_layer_ids(target.num_layers, count);
    }
    if (settings.mask_token_id) {
        std::int64_t mask = config.mask_token_id;
        apply(settings.mask_token_id, mask, "mask_token_id", fixed);
        config.mask_token_id = static_cast<TokenId>(mask);
    } else if (config.mask_token_id < 0) {
        config.mask_token_id = mask_token_by_rule(
            target, tokenizer, format, last_id_of_tokenizer_config(location.folder));
    }
    check_fits(config, target, choice.origin);
    config.validate(fmt::format("draft.* settings, the rest {}", choice.origin));
    return choice;
}

}  // namespace dflash::train
