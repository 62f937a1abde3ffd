// SPDX-License-Identifier: Apache-2.0
// Keys and their neutral values: transformers' GenerationConfig.
#include <dflash/core/error.hpp>
#include <dflash/io/json.hpp>
#include <dflash/target/generation_config.hpp>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>

namespace dflash::target {
namespace {

/// A key that is not followed, and the value with which it does nothing.
struct Unfollowed {
    const char* key;
    double neutral;
};

constexpr Unfollowed kUnfollowed[] = {{"repetition_penalty", 1},
                                      {"encoder_repetition_penalty", 1},
                                      {"no_repeat_ngram_size", 0},
                                      {"min_p", 0},
                                      {"typical_p", 1},
                                      {"epsilon_cutoff", 0},
                                      {"eta_cutoff", 0},
                                      {"presence_penalty", 0},
                                      {"frequency_penalty", 0},
                                      {"min_new_tokens", 0},
                                      {"num_beams", 1}};

[[noreturn]] void refuse(const std::string& path, const std::string& got, const char* expected) {
    throw Error(ErrorKind::Config,
                {.what = fmt::format("got {}, expected {}", got, expected),
                 .where = path,
                 .cause = {},
                 .hint = "Correct the file, or download the model again"});
}

TokenId token_of(const io::Json& value, const TargetConfig& config, const std::string& path) {
    const auto id = value.is_number() ? value.to_integer() : std::nullopt;
    if (!id || *id < 0 || *id >= config.vocab_size) {
        refuse(path,
               fmt::format("eos_token_id {}", value.dump()),
               "ids of the vocabulary, one or a list");
    }
    return static_cast<TokenId>(*id);
}

Sampling read_sampling(const io::Json& json, const std::string& path) {
    const auto temperature = json.optional_number("temperature", path);
    if (!json.optional_bool("do_sample", path).value_or(temperature.has_value())) {
        return {};
    }
    const Sampling sampling{.temperature = temperature.value_or(1),
                            .top_p = json.optional_number("top_p", path).value_or(1),
                            .top_k = json.optional_integer("top_k", path).value_or(0)};
    if (sampling.temperature < 0) {
        refuse(path, fmt::format("temperature {}", sampling.temperature), "0 or more");
    }
    if (sampling.top_p <= 0 || sampling.top_p > 1) {
        refuse(path, fmt::format("top_p {}", sampling.top_p), "above 0 and at most 1");
    }
    if (sampling.top_k < 0) {
        refuse(path, fmt::format("top_k {}", sampling.top_k), "0 or more");
    }
    return sampling;
}

}  // namespace

GenerationConfig GenerationConfig::read(const std::string& folder, const TargetConfig& config) {
    GenerationConfig result;
    for (const std::int64_t id : config.eos_token_ids) {
        result.stop_tokens.push_back(static_cast<TokenId>(id));
    }
    const std::string path = (std::filesystem::path(folder) / "generation_config.json").string();
    if (std::filesystem::exists(path)) {
        result.found = true;
        const io::Json json = io::read_json_file(path);
        if (!json.is_object()) {
            refuse(path, std::string(json.kind_name()), "an object");
        }
        result.sampling = read_sampling(json, path);
        if (const io::Json* eos = json.find("eos_token_id"); eos != nullptr && eos->is_array()) {
            for (const io::Json& id : eos->items()) {
                result.stop_tokens.push_back(token_of(id, config, path));
            }
        } else if (eos != nullptr && !eos->is_null()) {
            result.stop_tokens.push_back(token_of(*eos, config, path));
        }
        for (const Unfollowed& key : kUnfollowed) {
            const io::Json* value = json.find(key.key);
            if (value != nullptr && value->is_number() && value->to_double() != key.neutral) {
                result.ignored.push_back(fmt::format("{} {}", key.key, value->number_text()));
            }
        }
    }
    std::sort(result.stop_tokens.begin(), result.stop_tokens.end());
    result.stop_tokens.erase(std::unique(result.stop_tokens.begin(), result.stop_tokens.end()),
                             result.stop_tokens.end());
    return result;
}

}  // namespace dflash::target
