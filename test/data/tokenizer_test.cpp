// SPDX-License-Identifier: Apache-2.0
#include "golden_lines.hpp"
#include "tiny_tokenizer.hpp"

#include <dflash/core/error.hpp>
#include <dflash/data/tokenizer.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace dflash::data {
namespace {

using testing::tiny_tokenizer;
using testing::TinySpec;

constexpr const char* kNames[] = {"smollm2", "qwen3"};

std::string cut_path(const std::string& name) {
    return "test/golden/text/" + name + "-cut.json";
}

std::string cases_path(const std::string& name) {
    return "test/golden/text/tokenizer-" + name + ".jsonl";
}

std::vector<TokenId> ids_of(const io::Json& json) {
    std::vector<TokenId> ids;
    for (const io::Json& item : json.items()) {
        ids.push_back(static_cast<TokenId>(item.to_integer().value()));
    }
    return ids;
}

std::vector<TokenId> byte_ids(std::string_view bytes) {
    std::vector<TokenId> ids;
    for (const char c : bytes) {
        ids.push_back(static_cast<unsigned char>(c));
    }
    return ids;
}

bool is_character_edge(std::string_view text, std::int64_t at) {
    const auto place = static_cast<std::size_t>(at);
    return place == text.size() || (static_cast<unsigned char>(text[place]) & 0xC0U) != 0x80U;
}

TEST_SUITE("data.tokenizer") {
    TEST_CASE("tokenizer: gives the ids and the text of the reference") {
        for (const std::string name : kNames) {
            const Tokenizer tokenizer = Tokenizer::from_file(cut_path(name));
            const std::vector<io::Json> cases = testing::read_cases(cases_path(name));
            CHECK(cases.size() > 500);
            for (const io::Json& json : cases) {
                const std::string line = json.dump().substr(0, 300);
                CAPTURE(name);
                CAPTURE(line);
                const std::vector<TokenId> ids = ids_of(*json.find("ids"));
                if (json.find("text")->is_string()) {
                    CHECK(tokenizer.encode(json.find("text")->as_string()).ids == ids);
                }
                CHECK(tokenizer.decode(ids) == json.find("decoded")->as_string());
            }
        }
    }

    TEST_CASE("tokenizer: ranges are characters of the given text, in order, without gaps") {
        for (const std::string name : kNames) {
            const Tokenizer tokenizer = Tokenizer::from_file(cut_path(name));
            for (const io::Json& json : testing::read_cases(cases_path(name))) {
                if (!json.find("text")->is_string()) {
                    continue;
                }
                const std::string& text = json.find("text")->as_string();
                const std::string line = json.dump().substr(0, 300);
                CAPTURE(name);
                CAPTURE(line);
                const Encoding encoding = tokenizer.encode(text, /*with_ranges=*/true);
                REQUIRE(encoding.ranges.size() == encoding.ids.size());
                std::int64_t covered = 0;
                std::int64_t last_begin = 0;
                bool sound = true;
                for (const ByteRange& range : encoding.ranges) {
                    sound = sound && range.begin >= last_begin && range.end > range.begin &&
                            range.end <= static_cast<std::int64_t>(text.size()) &&
                            is_character_edge(text, range.begin) &&
                            is_character_edge(text, range.end);
                    // Only a byte without a token may leave a gap.
                    sound = sound && (range.begin <= covered || encoding.vanished_bytes > 0);
                    last_begin = range.begin;
                    covered = std::max(covered, range.end);
                }
                CHECK(sound);
                if (encoding.vanished_bytes == 0) {
                    CHECK(covered == static_cast<std::int64_t>(text.size()));
                }
            }
        }
    }

    TEST_CASE("tokenizer: a token with part of a character covers all of it, before NFC") {
        struct Case {
            std::string text;
            std::string bytes;  // of the tokens, one each
            std::vector<ByteRange> ranges;
        };

        // One token a byte, so that the bytes of the result can be read off.
        const std::vector<Case> cases{
            {"ae\u0301x", "a\xC3\xA9x", {{0, 1}, {1, 4}, {1, 4}, {4, 5}}},
            {"\u00E9", "\xC3\xA9", {{0, 2}, {0, 2}}},
            {"\u212Bb",
             "\xC3\x85"
             "b",
             {{0, 3}, {0, 3}, {3, 4}}},
            {"\u1112\u1161\u11AB", "\xED\x95\x9C", {{0, 9}, {0, 9}, {0, 9}}},
            {"q\u0316\u0301", "q\xCC\x96\xCC\x81", {{0, 1}, {1, 3}, {1, 3}, {3, 5}, {3, 5}}},
            {"q\u0301\u0316", "q\xCC\x96\xCC\x81", {{0, 5}, {0, 5}, {0, 5}, {0, 5}, {0, 5}}},
            {"e\u0301-e\u0301", "\xC3\xA9-\xC3\xA9", {{0, 3}, {0, 3}, {3, 4}, {4, 7}, {4, 7}}},
            {"\U0001F600", "\xF0\x9F\x98\x80", {{0, 4}, {0, 4}, {0, 4}, {0, 4}}},
            {"\n\u0301", "\n\xCC\x81", {{0, 1}, {1, 3}, {1, 3}}},
        };
        const Tokenizer tokenizer = tiny_tokenizer({.nfc = true});
        for (const Case& c : cases) {
            CAPTURE(c.text);
            const Encoding encoding = tokenizer.encode(c.text, /*with_ranges=*/true);
            CHECK(encoding.ids == byte_ids(c.bytes));
            CHECK(encoding.ranges == c.ranges);
        }
        // 256 is x with the first byte of U+00E9.
        const Tokenizer merged = tiny_tokenizer({.merges = {{"x", "\u00C3"}}});
        const Encoding encoding = merged.encode("ax\u00E9", /*with_ranges=*/true);
        CHECK(encoding.ids == std::vector<TokenId>{'a', 256, 0xA9});
        CHECK(encoding.ranges == std::vector<ByteRange>{{0, 1}, {1, 4}, {2, 4}});
    }

    TEST_CASE("tokenizer: finds added tokens leftmost, then longest, before anything else") {
        const Tokenizer tokenizer =
            tiny_tokenizer({.added = {"<a>", "<a>b", "b<", "\u0301!"}, .nfc = true});
        CHECK(tokenizer.encode("<a>c").ids == std::vector<TokenId>{256, 'c'});
        CHECK(tokenizer.encode("<a>b<").ids == std::vector<TokenId>{257, '<'});
        CHECK(tokenizer.encode("b<a>").ids == std::vector<TokenId>{258, 'a', '>'});
        CHECK(tokenizer.encode("<a<a>").ids == std::vector<TokenId>{'<', 'a', 256});
        // The mark belongs to the added token, and does not compose with the e.
        CHECK(tokenizer.encode("e\u0301!").ids == std::vector<TokenId>{'e', 259});
        const Encoding split = tokenizer.encode("e<a>\u0301e\u0301", /*with_ranges=*/true);
        CHECK(split.ids == std::vector<TokenId>{'e', 256, 0xCC, 0x81, 0xC3, 0xA9});
        CHECK(split.ranges ==
              std::vector<ByteRange>{{0, 1}, {1, 4}, {4, 6}, {4, 6}, {6, 9}, {6, 9}});
    }

    TEST_CASE("tokenizer: added tokens with normalized are found in the result of NFC") {
        const Tokenizer tokenizer =
            tiny_tokenizer({.added = {"<a>"}, .normalized = {"e\u0301<"}, .nfc = true});
        const Encoding encoding = tokenizer.encode("xe\u0301<a>\u00E9<", /*with_ranges=*/true);
        // "<a>" is taken out first, so the first e has no "<" behind it any more.
        CHECK(encoding.ids == std::vector<TokenId>{'x', 0xC3, 0xA9, 256, 257});
        CHECK(encoding.ranges == std::vector<ByteRange>{{0, 1}, {1, 4}, {1, 4}, {4, 7}, {7, 10}});
    }

    TEST_CASE("tokenizer: bytes without a token vanish, are counted, and join their neighbours") {
        const Tokenizer tokenizer =
            tiny_tokenizer({.merges = {{"a", "b"}}, .without_bytes = {0x04, 0xF1}});
        const Encoding encoding = tokenizer.encode(
            "a\x04"
            "b-\x04",
            /*with_ranges=*/true);
        CHECK(encoding.ids == std::vector<TokenId>{256, '-'});
        CHECK(encoding.ranges == std::vector<ByteRange>{{0, 3}, {3, 4}});
        CHECK(encoding.vanished_bytes == 2);
        const Encoding half = tokenizer.encode("\U00040001", /*with_ranges=*/true);
        CHECK(half.ids == std::vector<TokenId>{0x80, 0x80, 0x81});
        CHECK(half.ranges == std::vector<ByteRange>{{0, 4}, {0, 4}, {0, 4}});
        CHECK(half.vanished_bytes == 1);
        CHECK(tokenizer.encode("\x04").ids.empty());
    }

    TEST_CASE("tokenizer: merges the lowest rank first, then the leftmost pair") {
        const std::string text = "abcaaab";
        CHECK(tiny_tokenizer({.merges = {{"a", "b"}, {"b", "c"}}}).encode(text).ids ==
              std::vector<TokenId>{256, 'c', 'a', 'a', 256});
        CHECK(tiny_tokenizer({.merges = {{"b", "c"}, {"a", "b"}}}).encode(text).ids ==
              std::vector<TokenId>{'a', 256, 'a', 'a', 257});
        CHECK(tiny_tokenizer({.merges = {{"a", "a"}, {"aa", "a"}}}).encode("aaaaa").ids ==
              std::vector<TokenId>{256, 257});
        CHECK(tiny_tokenizer({.merges = {{"a", "a"}, {"aa", "aa"}}}).encode("aaaaaaa").ids ==
              std::vector<TokenId>{257, 256, 'a'});
    }

    TEST_CASE("tokenizer: takes a piece that is a token whole only with ignore_merges") {
        TinySpec spec{.merges = {{"a", "b"}}, .whole = {"abc"}};
        for (int again = 0; again < 2; ++again) {  // the first look-up is remembered
            CHECK(tiny_tokenizer(spec).encode("abc").ids == std::vector<TokenId>{256, 'c'});
        }
        spec.ignore_merges = true;
        CHECK(tiny_tokenizer(spec).encode("abc").ids == std::vector<TokenId>{257});
        CHECK(tiny_tokenizer(spec).encode("abcd").ids == std::vector<TokenId>{256, 'c', 'd'});
    }

    TEST_CASE("tokenizer: long pieces and long runs of marks take no quadratic time") {
        // Rescanning a piece at every merge, or sorting marks by insertion, would take minutes.
        const Tokenizer tokenizer = tiny_tokenizer(
            {.merges = {{"a", "a"}, {"aa", "aa"}, {"\u00CC", "\u0123"}}, .nfc = true});
        constexpr std::size_t kLength = 400'000;
        const Encoding letters = tokenizer.encode(std::string(kLength, 'a'), /*with_ranges=*/true);
        CHECK(letters.ids == std::vector<TokenId>(kLength / 4, 257));
        CHECK(letters.ranges.back() == ByteRange{kLength - 4, kLength});
        std::string marks = "q";
        std::string sorted = "q";
        for (std::size_t i = 0; i < kLength / 4; ++i) {
            marks += "\u0301\u0316";
        }
        for (const char* mark : {"\u0316", "\u0301"}) {
            for (std::size_t i = 0; i < kLength / 4; ++i) {
                sorted += mark;
            }
        }
        const std::vector<TokenId> ids = tokenizer.encode(marks).ids;
        CHECK(tokenizer.decode(ids) == sorted);
    }

    TEST_CASE("tokenizer: broken UTF-8 decodes to one U+FFFD per broken part") {
        const Tokenizer tokenizer = tiny_tokenizer({.added = {"\u00E9=", "e \u00E9"}});
        const std::vector<std::pair<std::string, std::string>> cases{
            {"ok", "ok"},
            {"\xE2\x82\xAC", "\u20AC"},
            {"\xE2\x82", "\uFFFD"},
            {"\xE2\x82"
             "A",
             "\uFFFDA"},
            {"\xF0\x9F\x98", "\uFFFD"},
            {"\xF0\x9F\xF0\x9F\x98\x80", "\uFFFD\U0001F600"},
            {"\xC0\x80", "\uFFFD\uFFFD"},
            {"\xE0\x80\x80", "\uFFFD\uFFFD\uFFFD"},
            {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
            {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
            {"\x80"
             "a\xFF",
             "\uFFFDa\uFFFD"},
        };
        for (const auto& c : cases) {
            CAPTURE(c.second);
            CHECK(tokenizer.decode(byte_ids(c.first)) == c.second);
        }
        // As the reference: an added token made of byte letters is read as bytes, another as text.
        CHECK(tokenizer.decode(std::vector<TokenId>{256}) == "\uFFFD=");
        CHECK(tokenizer.decode(std::vector<TokenId>{257}) == "e \u00E9");
        CHECK(tokenizer.decode(std::vector<TokenId>{'a', 9999, -1, 'b'}) == "ab");
        CHECK(tokenizer.decode({}).empty());
    }

    TEST_CASE("tokenizer: refuses text that is not UTF-8, with the place") {
        const Tokenizer tokenizer = tiny_tokenizer({});
        try {
            tokenizer.encode("abc\xFFz");
            FAIL("no error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Data);
            CHECK(std::string(error.what()).find("byte 3 of 5: got 0xff") != std::string::npos);
        }
        CHECK_THROWS_AS(tokenizer.encode("\xED\xA0\x80"), Error);
        CHECK(tokenizer.encode("").ids.empty());
    }

    TEST_CASE("tokenizer: finds ids by name, and one past the largest id") {
        const Tokenizer tokenizer = Tokenizer::from_file(cut_path("qwen3"));
        CHECK(tokenizer.id_of("<|im_end|>") == 151645);
        CHECK(tokenizer.id_of("</think>") == 151668);
        CHECK(tokenizer.id_of("!") == 0);
        CHECK(tokenizer.id_of("\u0120") == 220);  // the letter of a space
        CHECK(tokenizer.id_of(" ") == std::nullopt);
        CHECK(tokenizer.id_of("<|no such token|>") == std::nullopt);
        CHECK(tokenizer.num_ids() == 151669);
        CHECK(tokenizer.added_tokens().size() == 26);
        CHECK(tokenizer.added_tokens().front().content == "<|endoftext|>");
        CHECK(tokenizer.added_tokens().front().special);
        CHECK_FALSE(tokenizer.added_tokens().back().special);
    }

    TEST_CASE("tokenizer: the one of the tiny targets leaves the last of 512 rows free") {
        const Tokenizer tokenizer =
            Tokenizer::from_file("test/golden/tokenizer-512/tokenizer.json");
        CHECK(tokenizer.num_ids() == 511);
        CHECK(tokenizer.id_of("<|endoftext|>") == 0);
        CHECK(tokenizer.id_of("<|im_start|>") == 1);
        CHECK(tokenizer.id_of("<|im_end|>") == 2);
        const std::string text =
            "<|im_start|>user\nHow do I return 42 items?\u00E9\U0001F600\x04\n";
        const Encoding encoding = tokenizer.encode(text);
        CHECK(encoding.vanished_bytes == 0);
        CHECK(encoding.ids.front() == 1);
        CHECK(encoding.ids.size() < text.size() / 2 + 10);
        CHECK(tokenizer.decode(encoding.ids) == text);
    }

    TEST_CASE("tokenizer: several threads get what one gets") {
        const std::vector<io::Json> cases = testing::read_cases(cases_path("qwen3"));
        const Tokenizer tokenizer = Tokenizer::from_file(cut_path("qwen3"));
        std::vector<int> wrong(4, 0);
        std::vector<std::thread> threads;
        for (int& count : wrong) {
            threads.emplace_back([&] {
                for (const io::Json& json : cases) {
                    if (json.find("text")->is_string()) {
                        const auto ids = tokenizer.encode(json.find("text")->as_string()).ids;
                        count += ids == ids_of(*json.find("ids")) ? 0 : 1;
                    }
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        CHECK(wrong == std::vector<int>(4, 0));
    }
}

}  // namespace
}  // namespace dflash::data
