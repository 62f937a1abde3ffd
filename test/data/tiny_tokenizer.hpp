// SPDX-License-Identifier: Apache-2.0
// Tokenizers made in a test: the 256 bytes as ids 0-255, and what the test adds to them.
#pragma once

#include "byte_tokenizer.hpp"

#include <dflash/data/tokenizer.hpp>
#include <dflash/io/json.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dflash::data::testing {

struct TinySpec {
    std::vector<std::pair<std::string, std::string>> merges = {};  // in byte letters; ids from 256
    std::vector<std::string> whole = {};       // tokens without a merge; ids follow
    std::vector<std::string> added = {};       // looked for in the given text
    std::vector<std::string> normalized = {};  // looked for after NFC
    std::vector<std::uint32_t> without_bytes = {};
    bool nfc = false;
    std::string pattern = R"([\s\S]+)";  // the whole text is one piece
    bool ignore_merges = false;
};

inline io::Json split_json(const std::string& pattern) {
    return io::Json::object({{"type", io::Json::string("Split")},
                             {"pattern", io::Json::object({{"Regex", io::Json::string(pattern)}})},
                             {"behavior", io::Json::string("Isolated")},
                             {"invert", io::Json::boolean(false)}});
}

inline io::Json byte_level_json(bool use_regex) {
    return io::Json::object({{"type", io::Json::string("ByteLevel")},
                             {"add_prefix_space", io::Json::boolean(false)},
                             {"use_regex", io::Json::boolean(use_regex)}});
}

inline io::Json sequence_json(std::vector<io::Json> steps) {
    return io::Json::object({{"type", io::Json::string("Sequence")},
                             {"pretokenizers", io::Json::array(std::move(steps))}});
}

/// A copy of `json` in which the member `inner` of the member `outer` is replaced.
inline io::Json with_member(const io::Json& json,
                            const std::string& outer,
                            const std::string& inner,
                            io::Json value) {
    io::Json changed = json;
    io::Json member = *json.find(outer);
    member.set(inner, std::move(value));
    changed.set(outer, std::move(member));
    return changed;
}

inline io::Json tiny_json(const TinySpec& spec) {
    using io::Json;
    std::vector<std::pair<std::string, Json>> vocab;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        if (std::count(spec.without_bytes.begin(), spec.without_bytes.end(), byte) == 0) {
            vocab.emplace_back(byte_letter(byte), Json::integer(byte));
        }
    }
    std::int64_t next = 256;
    std::vector<Json> merges;
    for (const auto& [left, right] : spec.merges) {
        vocab.emplace_back(left + right, Json::integer(next++));
        merges.push_back(Json::array({Json::string(left), Json::string(right)}));
    }
    for (const std::string& token : spec.whole) {
        vocab.emplace_back(token, Json::integer(next++));
    }
    std::vector<Json> added;
    const auto add = [&](const std::string& content, bool normalized) {
        added.push_back(Json::object({{"id", Json::integer(next++)},
                                      {"content", Json::string(content)},
                                      {"normalized", Json::boolean(normalized)},
                                      {"special", Json::boolean(true)}}));
    };
    for (const std::string& content : spec.added) {
        add(content, /*normalized=*/false);
    }
    for (const std::string& content : spec.normalized) {
        add(content, /*normalized=*/true);
    }
    Json json = byte_tokenizer_json({});
    json.set("normalizer", spec.nfc ? Json::object({{"type", Json::string("NFC")}}) : Json());
    json.set("pre_tokenizer",
             sequence_json({split_json(spec.pattern), byte_level_json(/*use_regex=*/false)}));
    json.set("added_tokens", Json::array(std::move(added)));
    json = with_member(json, "model", "vocab", Json::object(std::move(vocab)));
    json = with_member(json, "model", "merges", Json::array(std::move(merges)));
    return with_member(json, "model", "ignore_merges", Json::boolean(spec.ignore_merges));
}

inline Tokenizer tiny_tokenizer(const TinySpec& spec) {
    return Tokenizer::from_json(tiny_json(spec), "tiny");
}

}  // namespace dflash::data::testing
