// SPDX-License-Identifier: Apache-2.0
// A tokenizer with one token per byte and the marks of ChatML, so that tests can count tokens.
#pragma once

#include <dflash/data/tokenizer.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dflash::data::testing {

inline std::string utf8_of(std::uint32_t code_point) {
    if (code_point < 0x80) {
        return {static_cast<char>(code_point)};
    }
    return {static_cast<char>(0xc0U | (code_point >> 6U)),
            static_cast<char>(0x80U | (code_point & 0x3fU))};
}

// The letter that stands for a byte in a byte-level vocabulary (GPT-2's table).
inline std::string byte_letter(std::uint32_t byte) {
    std::uint32_t next = 0x100;
    for (std::uint32_t b = 0; b < 256; ++b) {
        const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        const std::uint32_t letter = printable ? b : next++;
        if (b == byte) {
            return utf8_of(letter);
        }
    }
    return {};
}

inline io::Json byte_tokenizer_json(const std::vector<std::string>& added_tokens) {
    using io::Json;
    Json vocab = Json::object();
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        vocab.set(byte_letter(byte), Json::integer(byte));
    }
    std::vector<Json> added;
    for (const std::string& content : added_tokens) {
        added.push_back(
            Json::object({{"id", Json::integer(256 + static_cast<std::int64_t>(added.size()))},
                          {"content", Json::string(content)},
                          {"single_word", Json::boolean(false)},
                          {"lstrip", Json::boolean(false)},
                          {"rstrip", Json::boolean(false)},
                          {"normalized", Json::boolean(false)},
                          {"special", Json::boolean(true)}}));
    }
    const Json byte_level = Json::object({{"type", Json::string("ByteLevel")},
                                          {"add_prefix_space", Json::boolean(false)},
                                          {"trim_offsets", Json::boolean(true)},
                                          {"use_regex", Json::boolean(true)}});
    return Json::object({{"version", Json::string("1.0")},
                         {"truncation", Json()},
                         {"padding", Json()},
                         {"added_tokens", Json::array(std::move(added))},
                         {"normalizer", Json()},
                         {"pre_tokenizer", byte_level},
                         {"post_processor", Json()},
                         {"decoder", byte_level},
                         {"model",
                          Json::object({{"type", Json::string("BPE")},
                                        {"dropout", Json()},
                                        {"unk_token", Json()},
                                        {"continuing_subword_prefix", Json()},
                                        {"end_of_word_suffix", Json()},
                                        {"fuse_unk", Json::boolean(false)},
                                        {"byte_fallback", Json::boolean(false)},
                                        {"vocab", std::move(vocab)},
                                        {"merges", Json::array()}})}});
}

inline Tokenizer byte_tokenizer(const std::vector<std::string>& added_tokens = {
                                    "<|im_start|>", "<|im_end|>", "<think>", "</think>"}) {
    return Tokenizer::from_json(byte_tokenizer_json(added_tokens), "byte tokenizer");
}

}  // namespace dflash::data::testing
