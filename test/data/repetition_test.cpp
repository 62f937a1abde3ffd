// SPDX-License-Identifier: Apache-2.0
#include <dflash/data/repetition.hpp>

#include <doctest/doctest.h>
#include <vector>

namespace dflash::data {

TEST_SUITE("data.repetition") {
    TEST_CASE("repetition: counts the n-grams that were there before") {
        struct Case {
            std::vector<TokenId> tokens;
            std::int64_t n;
            double share;
        };

        const std::vector<Case> cases = {
            {{}, 4, 0},
            {{1, 2, 3, 4}, 4, 0},
            {{1, 2, 3, 4, 5, 6}, 4, 0},
            {{1, 2, 3, 4, 1, 2, 3, 4}, 4, 1.0 / 5},
            {{7, 7, 7, 7, 7, 7, 7}, 4, 3.0 / 4},
            {{1, 2, 1, 2, 1}, 2, 2.0 / 4},
            {{1, 1, 2, 1}, 1, 2.0 / 4},
        };
        for (const Case& c : cases) {
            CAPTURE(c.tokens.size());
            CHECK(repeated_share(c.tokens, c.n) == doctest::Approx(c.share));
        }
    }
}

}  // namespace dflash::data
