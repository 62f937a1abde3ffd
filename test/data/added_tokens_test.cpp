// SPDX-License-Identifier: Apache-2.0
#include "character_classes.hpp"
#include "golden_lines.hpp"

#include <dflash/data/tokenizer.hpp>

#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace dflash::data {
namespace {

TEST_SUITE("data.added_tokens") {
    TEST_CASE("added_tokens: edges and white space are taken as the reference takes them") {
        const Tokenizer tokenizer = Tokenizer::from_file("test/golden/text/added-tokens.json");
        const std::vector<io::Json> cases =
            testing::read_cases("test/golden/text/added-tokens.jsonl");
        CHECK(cases.size() == 1885);
        for (const io::Json& json : cases) {
            const std::string& text = json.find("text")->as_string();
            CAPTURE(text);
            std::vector<TokenId> ids;
            for (const io::Json& item : json.find("ids")->items()) {
                ids.push_back(static_cast<TokenId>(item.to_integer().value()));
            }
            CHECK(tokenizer.encode(text).ids == ids);
        }
    }

    TEST_CASE("added_tokens: the range of a token holds the white space that it takes") {
        const Tokenizer tokenizer = Tokenizer::from_file("test/golden/text/added-tokens.json");
        const TokenId both = *tokenizer.id_of("<lr>");
        const Encoding encoding = tokenizer.encode("a\t <lr>\u00a0\nb", /*with_ranges=*/true);
        CHECK(encoding.ids == std::vector<TokenId>{'a', both, 'b'});
        CHECK(encoding.ranges == std::vector<ByteRange>{{0, 1}, {1, 10}, {10, 11}});
        // Decoding gives the token's own text: what it took is gone, as in the reference.
        CHECK(tokenizer.decode(encoding.ids) == "a<lr>b");
    }

    TEST_CASE("added_tokens: word characters are letters, marks, digits, connectors and joiners") {
        for (const char32_t c : {U'a',
                                 U'Z',
                                 U'5',
                                 U'_',
                                 U'\u00e9',
                                 U'\u0301',
                                 U'\u0660',
                                 U'\u200d',
                                 U'\u24b6',
                                 U'\u203f',
                                 U'\u2160',
                                 U'\U0001f130',
                                 U'\u1c89',
                                 U'\U0001e4d0',
                                 U'\U00031350'}) {
            CAPTURE(static_cast<std::uint32_t>(c));
            CHECK(is_word_character(c));
        }
        for (const char32_t c : {U' ',
                                 U'.',
                                 U'\u00b2',
                                 U'\u2460',
                                 U'\u200b',
                                 U'\u180e',
                                 U'\ufeff',
                                 U'\U0001f600',
                                 U'\U0001f1e6',
                                 U'\u20ac'}) {
            CAPTURE(static_cast<std::uint32_t>(c));
            CHECK_FALSE(is_word_character(c));
        }
    }
}

}  // namespace
}  // namespace dflash::data
