// SPDX-License-Identifier: Apache-2.0
#include "pretokenizer.hpp"

#include "tiny_tokenizer.hpp"

#include <dflash/core/error.hpp>

#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace dflash::data {
namespace {

using io::Json;
using testing::byte_level_json;
using testing::sequence_json;
using testing::split_json;

std::vector<std::string> pieces(const Json& steps, std::string_view text) {
    const PreTokenizer pre_tokenizer = PreTokenizer::from_json(steps, "test");
    PreTokenizer::Space space;
    const auto& found = pre_tokenizer.split(text, space);
    return {found.begin(), found.end()};
}

std::vector<std::string> pieces(const std::string& pattern, std::string_view text) {
    return pieces(sequence_json({split_json(pattern), byte_level_json(/*use_regex=*/false)}), text);
}

Json digits_json(bool individual) {
    return Json::object(
        {{"type", Json::string("Digits")}, {"individual_digits", Json::boolean(individual)}});
}

constexpr const char* kQwen3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

TEST_SUITE("data.pretokenizer") {
    TEST_CASE("pre-tokenizer: patterns cut as in the reference") {
        struct Case {
            std::string pattern;
            std::string text;
            std::vector<std::string> expected;
        };

        const std::vector<Case> cases{
            {kQwen3, "It's 42  x\n\ny", {"It", "'s", " ", "4", "2", " ", " x", "\n\n", "y"}},
            // U+017F folds to s, U+212A to k.
            {kQwen3, "a'\u017F-'K", {"a", "'\u017F", "-'", "K"}},
            {"(?i:k)+|b", "k\u212AKb", {"k\u212AK", "b"}},
            // White space: not U+180E, U+200B, U+FEFF or U+001C; but U+0085 and U+3000.
            {R"(\s+)",
             "\u180E\u200B\uFEFF\x1C\u0085\u3000 ",
             {"\u180E\u200B\uFEFF\x1C", "\u0085\u3000 "}},
            {R"([^\s]+)", "a\u2028b", {"a", "\u2028", "b"}},
            {R"(\S+)", "a\u2028b", {"a", "\u2028", "b"}},
            {R"([\S]+)", "a\u2028b", {"a", "\u2028", "b"}},
            {R"([\s\d]+)", "a1\u00A0\u0663b", {"a", "1\u00A0\u0663", "b"}},
            // Letters and numbers after Unicode 14, of each case; marks.
            {kQwen3, "\uA7CB's", {"\uA7CB", "'s"}},
            {R"(\p{Lu}+)", "A\uA7CBb\u1C8A", {"A\uA7CB", "b\u1C8A"}},
            {R"(\p{Ll}+)", "A\uA7CBb\u1C8A", {"A\uA7CB", "b\u1C8A"}},
            {R"(\P{L}+)", "1\U000116D0\U00031350-", {"1\U000116D0", "\U00031350", "-"}},
            {R"(\p{M}+)", "a\u0301\u0897b", {"a", "\u0301\u0897", "b"}},
            {kO200k,
             "HelloWorld's 12345 a/b//\n!",
             {"Hello", "World's", " ", "123", "45", " a", "/b", "//\n", "!"}},
            // What lies between matches is a piece too; so is each side of an empty match.
            {"b+", "abbac", {"a", "bb", "ac"}},
            {"(?=b)", "abab", {"a", "ba", "b"}},
            {"x*", "ab", {"a", "b"}},
            {R"(\u0041|\x{e9}|\.)", "A\u00E9.b", {"A", "\u00E9", ".", "b"}},
            {R"(a+?|b++|c{2,3}?|(?:d|e){2}|.)",
             "aabbcccdef",
             {"a", "a", "bb", "cc", "c", "de", "f"}},
        };
        for (const Case& c : cases) {
            CAPTURE(c.pattern);
            CAPTURE(c.text);
            CHECK(pieces(c.pattern, c.text) == c.expected);
        }
    }

    TEST_CASE("pre-tokenizer: steps cut the pieces of the step before") {
        using Pieces = std::vector<std::string>;
        const Json smollm2 =
            sequence_json({digits_json(true), byte_level_json(/*use_regex=*/true)});
        // The run of spaces ends where Digits cut, so its last one is not kept for the number.
        CHECK(pieces(smollm2, "  1") == Pieces{"  ", "1"});
        CHECK(pieces(smollm2, "a  b 12") == Pieces{"a", " ", " b", " ", "1", "2"});
        CHECK(pieces(smollm2, "x\u0663\u2167\U00016FF4") ==
              Pieces{"x", "\u0663", "\u2167", "\U00016FF4"});
        CHECK(pieces(smollm2, "we'LL we'll") == Pieces{"we", "'", "LL", " we", "'ll"});
        const Json runs = sequence_json({digits_json(false), byte_level_json(/*use_regex=*/false)});
        CHECK(pieces(runs, "ab12c3") == Pieces{"ab", "12", "c", "3"});
        Json text = split_json("x");
        text.set("pattern", Json::object({{"String", Json::string("(.")}}));
        const Json literal = sequence_json({text, byte_level_json(/*use_regex=*/false)});
        CHECK(pieces(literal, "a(.(b") == Pieces{"a", "(.", "(b"});
        CHECK(pieces(literal, "").empty());
    }

    TEST_CASE("pre-tokenizer: pieces of a long text together are the text") {
        std::string text;
        for (int i = 0; i < 20'000; ++i) {
            text += i % 7 == 0   ? "  \u4E2D\u6587 "
                    : i % 3 == 0 ? "don't\r\n"
                                 : " x\u0301y 3.14\u2003";
        }
        std::string joined;
        for (const std::string& piece : pieces(kQwen3, text)) {
            CHECK_FALSE(piece.empty());
            joined += piece;
        }
        CHECK((joined == text));
        const std::string spaces(1'000'000, ' ');
        CHECK(pieces(kQwen3, spaces + "x").size() == 2);
        CHECK(pieces(kQwen3, std::string(1'000'000, 'x')).size() == 1);
    }

    TEST_CASE("pre-tokenizer: refuses patterns that would mean something else") {
        // Each is valid for one of the two libraries, or for both with another meaning.
        const std::vector<std::pair<std::string, std::string>> cases{
            {"a$", "the anchor $"},
            {"^a", "the anchor ^"},
            {R"(\w+)", R"(the escape \w)"},
            {R"(\bx)", R"(the escape \b)"},
            {R"(\h)", R"(the escape \h)"},
            {R"(\A)", R"(the escape \A)"},
            {R"(\pL)", R"(the escape \p)"},
            {R"(\p{Han})", R"(the property "Han")"},
            {R"(\p{^L})", R"(the property "^L")"},
            {R"(\p{C})", R"(the property "C")"},
            {R"([\P{L}])", R"(\P{..} inside a class)"},
            {"(?i)a", "the group"},
            {"(?<n>a)", "the group"},
            {"(*UCP)a", "the group"},
            {"(?i:stra\u00DFe)", "in a caseless group"},
            {"(?i:class)", "the letters \"ss\""},
            {"(?i:st|FI)", "the letters \"st\""},
            {"(?i:x|FI)", "the letters \"fi\""},
            {R"((?i:\p{Lu}))", R"(\p in a caseless group)"},
            {"a{1,3}+", "}+"},
            {"a{2}?", "}?"},
            {"a{,3}", "a { that begins no"},
            {"a{", "a { that begins no"},
            {"[a&&b]", "an intersection of classes"},
            {"[a[b]]", "a class inside a class"},
            {"[]a]", "a class that begins with ]"},
            {"[a", "a class that is not closed"},
            {"(a", "a group that is not closed"},
            {"a)", "a ) without ("},
            {R"(\x41)", R"(an escape other than)"},
            {R"(\u00)", R"(an escape other than)"},
            {"a\\", "a \\ at its end"},
            {"*a", "does not compile"},
            {"[z-a]", "does not compile"},
        };
        for (const auto& c : cases) {
            CAPTURE(c.first);
            try {
                pieces(c.first, "a");
                FAIL_CHECK("no error");
            } catch (const Error& error) {
                const std::string what = error.what();
                CAPTURE(what);
                CHECK(error.kind() == ErrorKind::Config);
                CHECK(what.find(c.second) != std::string::npos);
            }
        }
    }
}

}  // namespace
}  // namespace dflash::data
