// SPDX-License-Identifier: Apache-2.0
#include <dflash/eval/prompt_lookup.hpp>

#include <doctest/doctest.h>

namespace dflash::eval {

TEST_SUITE("eval.prompt_lookup") {
    using Tokens = std::vector<TokenId>;

    TEST_CASE("copies what followed the last tokens the first time") {
        struct Case {
            Tokens tokens;
            std::int64_t count;
            Tokens expected;
        };

        const std::vector<Case> cases{
            {{1, 2, 3, 4, 5, 1, 2, 3}, 2, {4, 5}},
            {{1, 2, 3, 4, 5, 1, 2, 3}, 9, {4, 5, 1, 2, 3}},  // no more than there is
            {{9, 3, 7, 2, 3, 8, 1, 2, 3}, 1, {8}},           // two tokens match, one would give 7
            {{4, 3, 6, 4, 3, 7, 4, 3}, 1, {6}},              // the first of several matches
            {{5, 5, 5}, 4, {5}},                             // a match may overlap the end
            {{1, 2, 3}, 4, {}},
            {{7}, 4, {}},
            {{}, 4, {}},
        };
        for (const Case& c : cases) {
            CAPTURE(c.tokens);
            CHECK(look_up(c.tokens, c.count) == c.expected);
        }
    }

    TEST_CASE("no more than three tokens decide") {
        // Four tokens match at the second place, three at the first.
        CHECK(look_up(Tokens{9, 1, 2, 3, 7, 0, 1, 2, 3, 8, 0, 1, 2, 3}, 1) == Tokens{7});
    }

    TEST_CASE("drafts one less than a block has slots") {
        PromptLookup lookup(4);
        const Tokens tokens{1, 2, 3, 4, 5, 6, 1};
        const std::vector<SequenceView> sequences{{0, 0, tokens}};
        const auto drafts = lookup.propose(sequences, {});
        REQUIRE(drafts.size() == 1);
        CHECK(drafts[0] == Tokens{2, 3, 4});
        CHECK_FALSE(lookup.distributions(0, 1).defined());
    }
}

}  // namespace dflash::eval
