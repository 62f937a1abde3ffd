// SPDX-License-Identifier: Apache-2.0
// What must hold for any text, tried on random ones of the characters that matter.
#include "normalizer.hpp"
#include "split_pattern.hpp"

#include <dflash/data/tokenizer.hpp>

#include <algorithm>
#include <cstdlib>
#include <doctest/doctest.h>
#include <random>
#include <string>
#include <vector>

namespace dflash::data {
namespace {

// Letters of several scripts, marks that compose or move, white space, marks of chats, byte
// letters, digits, emoji, and the pieces that patterns treat apart.
const std::vector<std::string>& pieces() {
    static const std::vector<std::string> list = {"a",
                                                  "the ",
                                                  " quick",
                                                  "X's",
                                                  "don't",
                                                  "I'LL",
                                                  " ",
                                                  "  ",
                                                  "\n",
                                                  "\r\n",
                                                  "\t",
                                                  "\u00a0",
                                                  "\u3000",
                                                  "\u0085",
                                                  "\u180e",
                                                  "\u200b",
                                                  "7",
                                                  "2026",
                                                  "\u0663",
                                                  "\u00bd",
                                                  "\u2167",
                                                  ".",
                                                  "...",
                                                  "/*",
                                                  "=>",
                                                  "\u00e9",
                                                  "e\u0301",
                                                  "\u0301",
                                                  "\u0316",
                                                  "\u1100",
                                                  "\u1161",
                                                  "\u11a8",
                                                  "\uac00",
                                                  "\u212b",
                                                  "\ufb01",
                                                  "\u0915\u093c",
                                                  "\u4e2d\u6587",
                                                  "\u3042",
                                                  "\u05d0",
                                                  "\u0627",
                                                  "\u0120",
                                                  "\u010a",
                                                  "\U0001f600",
                                                  "\U0001f468\u200d\U0001f469",
                                                  "\u1c89",
                                                  "\U00016d40",
                                                  "<|im_start|>",
                                                  "<|im_end|>",
                                                  "<think>",
                                                  "</think>",
                                                  "<|im_",
                                                  "<|endoftext|>",
                                                  "<tool_call>"};
    return list;
}

std::string random_text(std::mt19937& random) {
    std::string text;
    std::uniform_int_distribution<std::size_t> length(0, 40);
    std::uniform_int_distribution<std::size_t> which(0, pieces().size() - 1);
    for (std::size_t n = length(random); n > 0; --n) {
        text += pieces()[which(random)];
    }
    return text;
}

int num_texts() {
    const char* const asked = std::getenv("DFLASH_PROPERTY_TEXTS");
    return asked == nullptr ? 2000 : std::atoi(asked);
}

}  // namespace

TEST_SUITE("data.tokenizer_property") {
    TEST_CASE("tokenizer_property: decoding what was encoded gives the text, in NFC where asked") {
        for (const std::string name : {"qwen3", "smollm2", "gpt-oss"}) {
            CAPTURE(name);
            const Tokenizer tokenizer =
                Tokenizer::from_file("test/golden/text/" + name + "-cut.json");
            // Marks that stand before or behind an added token do not compose across it.
            const auto nfc = [&](const std::string& text) {
                std::string result;
                std::size_t begin = 0;
                const Encoding encoding = tokenizer.encode(text, /*with_ranges=*/true);
                const auto add = [&](std::size_t end) {
                    const std::string part = text.substr(begin, end - begin);
                    const auto changed = normalize_nfc(part);
                    result += changed ? changed->text : part;
                };
                for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
                    const TokenId id = encoding.ids[i];
                    const auto& added = tokenizer.added_tokens();
                    const auto token =
                        std::find_if(added.begin(), added.end(), [id](const AddedToken& candidate) {
                            return candidate.id == id;
                        });
                    if (token != added.end()) {
                        add(static_cast<std::size_t>(encoding.ranges[i].begin));
                        result += token->content;
                        begin = static_cast<std::size_t>(encoding.ranges[i].end);
                    }
                }
                add(text.size());
                return result;
            };
            std::mt19937 random(20);
            for (int i = 0; i < num_texts(); ++i) {
                const std::string text = random_text(random);
                CAPTURE(text);
                const Encoding encoding = tokenizer.encode(text);
                REQUIRE(encoding.vanished_bytes == 0);
                CHECK(tokenizer.decode(encoding.ids) == (name == "qwen3" ? nfc(text) : text));
            }
        }
    }

    TEST_CASE("tokenizer_property: ranges begin and end at characters, rise, and cover the text") {
        const Tokenizer tokenizer = Tokenizer::from_file("test/golden/text/qwen3-cut.json");
        std::mt19937 random(21);
        for (int i = 0; i < num_texts(); ++i) {
            const std::string text = random_text(random);
            CAPTURE(text);
            const Encoding encoding = tokenizer.encode(text, /*with_ranges=*/true);
            CHECK(tokenizer.encode(text).ids == encoding.ids);
            REQUIRE(encoding.ranges.size() == encoding.ids.size());
            std::int64_t covered = 0;
            std::int64_t last_begin = 0;
            for (const ByteRange& range : encoding.ranges) {
                REQUIRE(range.begin >= last_begin);
                REQUIRE(range.begin <= covered);
                REQUIRE(range.end > range.begin);
                last_begin = range.begin;
                covered = std::max(covered, range.end);
            }
            CHECK(covered == static_cast<std::int64_t>(text.size()));
        }
    }

    TEST_CASE("tokenizer_property: the code for ASCII cuts as the code for all characters does") {
        // Of GPT-2 and SmolLM2, Qwen, Llama 3, gpt-oss.
        for (
            const std::string pattern :
            {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
             R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
             R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
             R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
             R"(\P{N}+?\d|\S{2,3})"}) {
            CAPTURE(pattern);
            const SplitPattern both(pattern, "");
            const SplitPattern one(pattern, "", /*ascii_code=*/false);
            MatchSpace space;
            std::mt19937 random(23);
            for (int i = 0; i < num_texts(); ++i) {
                const std::string text = random_text(random);
                CAPTURE(text);
                std::vector<std::string_view> found;
                std::vector<std::string_view> expected;
                both.split(text, space, found);
                one.split(text, space, expected);
                CHECK(found == expected);
            }
        }
    }

    TEST_CASE("tokenizer_property: an added token cuts the text: both sides alone give the same") {
        const Tokenizer tokenizer = Tokenizer::from_file("test/golden/text/qwen3-cut.json");
        std::mt19937 random(22);
        for (int i = 0; i < num_texts(); ++i) {
            const std::string left = random_text(random);
            const std::string right = random_text(random);
            CAPTURE(left);
            CAPTURE(right);
            std::vector<TokenId> expected = tokenizer.encode(left).ids;
            expected.push_back(*tokenizer.id_of("<|im_end|>"));
            const std::vector<TokenId> behind = tokenizer.encode(right).ids;
            expected.insert(expected.end(), behind.begin(), behind.end());
            CHECK(tokenizer.encode(left + "<|im_end|>" + right).ids == expected);
        }
    }
}

}  // namespace dflash::data
