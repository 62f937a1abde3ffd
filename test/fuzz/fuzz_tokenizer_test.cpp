// SPDX-License-Identifier: Apache-2.0
#include "fuzz_loop.hpp"
#include "tiny_tokenizer.hpp"

#include <dflash/core/log.hpp>
#include <dflash/data/tokenizer.hpp>

#include <doctest/doctest.h>

namespace dflash {

namespace {

// Patterns as real tokenizers have them: what is damaged in them is tried as a pattern.
std::vector<std::string> seeds() {
    using namespace data::testing;
    return {
        test::read_seed("test/golden/text/added-tokens.json"),
        tiny_json(
            {.merges = {{"a", "b"}, {"ab", "c"}},
             .whole = {"hello"},
             .added = {"<|im_start|>", "<|im_end|>"},
             .normalized = {"\u00e9x"},
             .nfc = true,
             .pattern =
                 R"((?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}]+|\s+(?!\S)|\s+)"})
            .dump(),
        tiny_json({.merges = {{"h", "e"}}, .pattern = R"([\s\S]+)", .ignore_merges = true}).dump()};
}

}  // namespace

TEST_SUITE("fuzz.tokenizer") {
    TEST_CASE("fuzz: a tokenizer.json is read or refused, and encodes what it was read for") {
        const std::vector<std::string> files = seeds();
        const std::string text =
            "<|im_start|>user\nIt's 12345 e\u0301x  \u4e2d\u6587 hello\r\n\r\n<lr> word "
            "abcabc<|im_end|>" +
            std::string(2000, ' ') + std::string(2000, 'a');
        test::fuzz({.name = "tokenizer.json",
                    .make_input =
                        [&](RandomStream& random) { return test::mutate_json_text(files, random); },
                    .read =
                        [&](const std::string& input) {
                            const auto tokenizer = data::Tokenizer::from_json(
                                io::Json::parse(input, "tokenizer.json"), "tokenizer.json");
                            const data::Encoding encoding =
                                tokenizer.encode(text, /*with_ranges=*/true);
                            CHECK(encoding.ranges.size() == encoding.ids.size());
                            for (const TokenId id : encoding.ids) {
                                REQUIRE(id >= 0);
                                REQUIRE(id < tokenizer.num_ids());
                            }
                            tokenizer.decode(encoding.ids);
                        }});
    }
}

}  // namespace dflash
