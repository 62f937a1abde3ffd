// SPDX-License-Identifier: Apache-2.0
#include <dflash/eval/acceptance.hpp>

#include <doctest/doctest.h>

namespace dflash::eval {

TEST_SUITE("eval.acceptance") {
    // A prompt of 5 tokens; tokens 10, 11, ... at positions 5, 6, ...
    DecodedText text(std::vector<TokenId> emitted, std::vector<Round> rounds) {
        DecodedText result;
        result.emitted = std::move(emitted);
        result.rounds = std::move(rounds);
        return result;
    }

    TEST_CASE("tau counts the bonus token, and the last round whole") {
        Acceptance acceptance(4);
        acceptance.add(
            text({10, 11, 12, 13, 14, 15}, {{5, {11, 12, 0}, 2, 13}, {8, {14, 15, 16}, 3, 17}}));
        CHECK(acceptance.rounds() == 2);
        CHECK(acceptance.tau() == doctest::Approx((3 + 4) / 2.0));
        // Of the last round only two of four tokens are in the text.
        CHECK(acceptance.tokens_per_call() == doctest::Approx(5 / 2.0));
    }

    TEST_CASE("a slot is kept only with all before it, and may be right behind a refused one") {
        Acceptance acceptance(4);
        acceptance.add(
            text({10, 11, 12, 13, 14, 15}, {{5, {0, 12, 13}, 0, 11}, {6, {12, 0, 14}, 1, 13}}));
        const std::vector<double> kept = acceptance.kept_by_slot();
        CHECK(kept == std::vector<double>{0.5, 0, 0});
        CHECK(acceptance.right_by_slot() == std::vector<double>{0.5, 0.5, 1});
    }

    TEST_CASE("drafts behind the end of the text are not compared") {
        Acceptance acceptance(4);
        acceptance.add(text({10, 11}, {{5, {11, 12, 13}, 3, 14}}));
        CHECK(acceptance.right_by_slot() == std::vector<double>{1, 0, 0});
        CHECK(acceptance.kept_by_slot() == std::vector<double>{1, 1, 1});
    }

    TEST_CASE("rounds without drafts give tau 1, no rounds give 0") {
        Acceptance acceptance(4);
        CHECK(acceptance.tau() == 0);
        acceptance.add(text({10, 11, 12}, {{5, {}, 0, 11}, {6, {}, 0, 12}}));
        CHECK(acceptance.tau() == 1);
        CHECK(acceptance.kept_by_slot() == std::vector<double>{0, 0, 0});
    }

    TEST_CASE("the order of texts does not matter") {
        const DecodedText a = text({10, 11, 12}, {{5, {11, 0, 0}, 1, 12}});
        const DecodedText b = text({10, 11}, {{7, {3, 0, 0}, 0, 11}});
        Acceptance first(4);
        first.add(a);
        first.add(b);
        Acceptance second(4);
        second.add(b);
        second.add(a);
        CHECK(first == second);
        CHECK(first.texts() == 2);
    }
}

}  // namespace dflash::eval
