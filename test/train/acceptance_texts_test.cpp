// SPDX-License-Identifier: Apache-2.0
#include <dflash/train/acceptance_texts.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <vector>

namespace dflash::train {
namespace {

JudgedText text_of(std::int64_t prompt, std::int64_t answer) {
    return {.tokens = std::vector<TokenId>(static_cast<std::size_t>(prompt + answer), 7),
            .begin = prompt};
}

std::int64_t length_of(const JudgedText& text) {
    return std::ssize(text.tokens);
}

/// Tokens of the answer with one behind them.
std::int64_t anchors_of(const JudgedText& text) {
    return length_of(text) - 1 - text.begin;
}

TEST_SUITE("train.acceptance_texts") {
    TEST_CASE("cuts of the longest text leave no text with more tokens or anchors") {
        for (const std::int64_t prompt : {1, 2, 35, 127, 128, 129, 2000}) {
            for (const std::int64_t answer : {1, 2, 24, 128, 256}) {
                CAPTURE(prompt);
                CAPTURE(answer);
                const std::vector<JudgedText> cuts = cut_in_halves(text_of(prompt, answer));
                REQUIRE_FALSE(cuts.empty());
                CHECK(length_of(cuts.front()) == prompt + answer);
                CHECK(anchors_of(cuts.front()) == answer - 1);
                for (const JudgedText& cut : cuts) {
                    CAPTURE(length_of(cut));
                    CHECK(cut.begin >= 1);
                    CHECK(anchors_of(cut) == std::min(answer, length_of(cut) - 1) - 1);
                }
            }
        }
    }

    TEST_CASE("cuts go down to a few tokens by halves") {
        std::vector<std::int64_t> lengths;
        for (const JudgedText& cut : cut_in_halves(text_of(35, 128))) {
            lengths.push_back(length_of(cut));
        }
        CHECK(lengths == std::vector<std::int64_t>{163, 81, 40, 20});
        CHECK(cut_in_halves(text_of(1, 1)).size() == 1);
    }
}

}  // namespace
}  // namespace dflash::train
