// SPDX-License-Identifier: Apache-2.0
#include "pretokenizer.hpp"

#include "character_classes.hpp"
#include "utf8.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>

#include <fmt/format.h>
#include <utility>

namespace dflash::data {
namespace {

// What ByteLevel with use_regex splits with (tokenizers 0.23, pre_tokenizers/byte_level.rs).
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void refuse(const std::string& what, const std::string& where) {
    throw Error(ErrorKind::Config,
                {.what = "pre_tokenizer: " + what,
                 .where = where,
                 .cause = "",
                 .hint = "supported are byte-level tokenizers: Split and Digits steps with a "
                         "ByteLevel last, as SmolLM2, Qwen3, Llama 3 and gpt-oss have"});
}

// `absent` is the value that the reference takes where the key is missing.
void require_flag(
    const io::Json& json, const char* key, bool absent, bool expected, const std::string& where) {
    const bool value = json.optional_bool(key, where).value_or(absent);
    if (value != expected) {
        refuse(fmt::format("{} of {} is {}, expected {}",
                           key,
                           json.require_string("type", where),
                           value,
                           expected),
               where);
    }
}

// Cuts where text and number meet, and between numbers if they stand alone.
void split_digits(std::string_view text,
                  const DigitsStep& step,
                  std::vector<std::string_view>& pieces) {
    std::size_t piece = 0;
    bool in_number = false;
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Step found = step_utf8(text, at);
        const bool number = is_number(found.code_point);
        const bool cut = number != in_number || (number && step.individual);
        if (cut && at > piece) {
            pieces.push_back(text.substr(piece, at - piece));
            piece = at;
        }
        in_number = number;
        at += found.length;
    }
    if (piece < text.size()) {
        pieces.push_back(text.substr(piece));
    }
}

SplitPattern read_split(const io::Json& json, const std::string& where) {
    const std::string behavior = json.require_string("behavior", where);
    if (behavior != "Isolated") {
        refuse(fmt::format("behavior of Split is {}, expected \"Isolated\"", quote(behavior)),
               where);
    }
    require_flag(json, "invert", false, false, where);
    const io::Json* pattern = json.find("pattern");
    if (pattern != nullptr && pattern->find("Regex") != nullptr) {
        return {pattern->require_string("Regex", where), where};
    }
    if (pattern != nullptr && pattern->find("String") != nullptr) {
        const std::string text = pattern->require_string("String", where);
        if (!text.empty()) {
            return SplitPattern::from_literal(text, where);
        }
    }
    refuse("Split has no pattern, expected {\"Regex\": ..} or {\"String\": ..}", where);
}

}  // namespace

PreTokenizer PreTokenizer::from_json(const io::Json& json, const std::string& where) {
    PreTokenizer result;
    if (!json.is_object()) {
        refuse(fmt::format("found {}, expected an object that ends in ByteLevel", json.kind_name()),
               where);
    }
    result.add_step(json, where);
    if (!result.has_byte_level_) {
        refuse("no ByteLevel step, so the vocabulary is not a byte-level one", where);
    }
    return result;
}

void PreTokenizer::add_step(const io::Json& json, const std::string& where) {
    const std::string type = json.require_string("type", where);
    if (type == "Sequence") {
        const io::Json* steps = json.find("pretokenizers");
        if (steps == nullptr || !steps->is_array()) {
            refuse("Sequence has no list \"pretokenizers\"", where);
        }
        for (const io::Json& step : steps->items()) {
            add_step(step, where);
        }
        return;
    }
    if (has_byte_level_) {
        refuse(fmt::format("{} after ByteLevel", type), where);
    }
    if (type == "Split") {
        steps_.emplace_back(read_split(json, where));
    } else if (type == "Digits") {
        const bool individual = json.optional_bool("individual_digits", where).value_or(false);
        steps_.emplace_back(DigitsStep{.individual = individual});
    } else if (type == "ByteLevel") {
        require_flag(json, "add_prefix_space", true, false, where);
        // What it does to bytes is in the vocabulary's names; here it only cuts.
        if (json.optional_bool("use_regex", where).value_or(true)) {
            steps_.emplace_back(SplitPattern(kByteLevelPattern, where));
        }
        has_byte_level_ = true;
    } else {
        refuse(fmt::format("type {} is not known", quote(type)), where);
    }
}

const std::vector<std::string_view>& PreTokenizer::split(std::string_view text,
                                                         Space& space) const {
    space.pieces.clear();
    if (!text.empty()) {
        space.pieces.push_back(text);
    }
    for (const Step& step : steps_) {
        space.finer.clear();
        for (const std::string_view piece : space.pieces) {
            if (const auto* pattern = std::get_if<SplitPattern>(&step)) {
                pattern->split(piece, space.match, space.finer);
            } else {
                split_digits(piece, std::get<DigitsStep>(step), space.finer);
            }
        }
        std::swap(space.pieces, space.finer);
    }
    return space.pieces;
}

}  // namespace dflash::data
