// SPDX-License-Identifier: Apache-2.0
// Keys and defaults: speculators 0a09610 src/speculators/models/dflash/config.py.
#include "speculators_config.hpp"

#include <dflash/core/error.hpp>

#include <array>
#include <fmt/format.h>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace dflash::model {
namespace {

constexpr std::int64_t kDefaultBlockSize = 8;

[[noreturn]] void refuse(std::string what, const std::string& where, std::string hint = {}) {
    throw Error(ErrorKind::Config,
                {.what = std::move(what), .where = where, .cause = {}, .hint = std::move(hint)});
}

/// A text that must have that value if it is there.
void require_text(const io::Json& json,
                  std::string_view key,
                  std::string_view expected,
                  const std::string& where) {
    const std::optional<std::string> text = json.optional_string(key, where);
    if (text && *text != expected) {
        refuse(fmt::format("{}: got \"{}\", expected \"{}\"", key, *text, expected),
               where,
               "Only plain DFlash drafters of speculators can be trained");
    }
}

/// A flag that must be false if it is there.
void require_false(const io::Json& json, std::string_view key, const std::string& where) {
    if (json.optional_bool(key, where).value_or(false)) {
        refuse(fmt::format("{}: got true, expected false: its slots predict the token after "
                           "their own",
                           key),
               where,
               "Only plain DFlash drafters of speculators can be trained");
    }
}

io::Json layer_ids(const io::Json& json, const std::string& where) {
    constexpr std::string_view kKey = "aux_hidden_state_layer_ids";
    const io::Json* ids = json.find(kKey);
    if (ids == nullptr || !ids->is_array()) {
        refuse(fmt::format("{}: got {}, expected a list of layer ids",
                           kKey,
                           ids == nullptr ? "none" : ids->kind_name()),
               where);
    }
    std::vector<io::Json> result;
    for (const io::Json& item : ids->items()) {
        const std::optional<std::int64_t> id = item.is_number() ? item.to_integer() : std::nullopt;
        if (!id || *id < 1) {
            refuse(fmt::format("{}: got {} in the list, expected 1 or more: id l + 1 is the output "
                               "of layer l",
                               kKey,
                               item.dump()),
                   where);
        }
        result.push_back(io::Json::integer(*id - 1));
    }
    return io::Json::array(std::move(result));
}

}  // namespace

bool is_speculators(const io::Json& json) {
    const io::Json* type = json.find("speculators_model_type");
    return type != nullptr && !type->is_null();
}

io::Json from_speculators(const io::Json& json, const std::string& where) {
    require_text(json, "speculators_model_type", "dflash", where);
    // The other keys of Domino stand in every config; without this projector they mean nothing.
    require_text(json, "projector_type", "dflash", where);
    require_false(json, "sample_from_anchor", where);
    require_false(json, "shift_label", where);
    const io::Json* transformer = json.find("transformer_layer_config");
    if (transformer == nullptr || !transformer->is_object()) {
        refuse(fmt::format("transformer_layer_config: got {}, expected an object, as "
                           "speculators_model_type is there",
                           transformer == nullptr ? "none" : transformer->kind_name()),
               where);
    }
    require_text(*transformer, "model_type", "qwen3", where + ": transformer_layer_config");

    io::Json result = io::Json::object();
    for (const auto& [key, value] : transformer->members()) {
        // It may be that of the target, from whose config speculators derives this one.
        if (key != "architectures") {
            result.set(key, value);
        }
    }
    const std::int64_t hidden_size = result.require_integer("hidden_size", where);
    const std::int64_t target_size =
        json.optional_integer("target_hidden_size", where).value_or(hidden_size);
    if (target_size != hidden_size) {
        refuse(
            fmt::format(
                "target_hidden_size: got {}, expected hidden_size = {}", target_size, hidden_size),
            where);
    }
    const std::int64_t block_size =
        json.optional_integer("block_size", where).value_or(kDefaultBlockSize);
    result.set("block_size", io::Json::integer(block_size));
    result.set("dflash_config",
               io::Json::object({{"mask_token_id",
                                  io::Json::integer(json.require_integer("mask_token_id", where))},
                                 {"target_layer_ids", layer_ids(json, where)}}));
    if (json.optional_bool("sliding_window_non_causal", where).value_or(false)) {
        // Layers with full attention see the whole block in any case.
        result.set("is_causal", io::Json::boolean(false));
    }
    if (const auto layers = json.optional_integer("num_target_layers", where)) {
        result.set("num_target_layers", io::Json::integer(*layers));
    }
    return result;
}

}  // namespace dflash::model
