// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/eval/greedy_check.hpp>

#include <doctest/doctest.h>
#include <string>

namespace dflash::eval {

TEST_SUITE("eval.greedy_check") {
    DecodedText text(std::vector<TokenId> emitted, std::vector<Lead> leads) {
        DecodedText result;
        result.id = 3;
        result.emitted = std::move(emitted);
        result.leads = std::move(leads);
        return result;
    }

    GreedyComparison compare(
        const DecodedText& plain, const DecodedText& drafted, at::ScalarType dtype) {
        return compare_greedy(std::vector<DecodedText>{plain},
                              std::vector<DecodedText>{drafted},
                              dtype,
                              [](std::int64_t id) { return "row " + std::to_string(id); });
    }

    TEST_CASE("equal texts are equal, and the rounding between them is measured") {
        const GreedyComparison result = compare(text({5, 6}, {{8, 1, 2}, {9, 1, 3}}),
                                                text({5, 6}, {{8.25F, 1, 2}, {9, 1, 3}}),
                                                at::kBFloat16);
        CHECK(result.tokens == 2);
        CHECK(result.ties.empty());
        CHECK(result.largest_rounding == 0.25);
    }

    TEST_CASE("a lead within the rounding of bf16 is a tie, and ends the comparison of its text") {
        const DecodedText plain = text({5, 6, 1}, {{8, 1, 2}, {16, 7, 15.8F}, {4, 0, 0}});
        const DecodedText drafted = text({5, 7, 2, 2}, {{8, 1, 2}, {15.9F, 6, 15.8F}, {}, {}});
        const GreedyComparison result = compare(plain, drafted, at::kBFloat16);
        CHECK(result.tokens == 1);
        REQUIRE(result.ties.size() == 1);
        CHECK(result.ties[0].position == 1);
        CHECK(result.ties[0].plain == 6);
        CHECK(result.ties[0].drafted == 7);
        CHECK(result.ties[0].distance == doctest::Approx(0.1));
        // The same distance is no tie in fp32.
        CHECK_THROWS_AS(compare(plain, drafted, at::kFloat), Error);
    }

    TEST_CASE("any other difference stops, with row, place, tokens and logits") {
        const DecodedText plain = text({5, 6}, {{8, 1, 2}, {16, 7, 13}});
        const auto fails_with = [&](const DecodedText& drafted, const char* part) {
            CAPTURE(part);
            CHECK_THROWS_WITH_AS(
                compare(plain, drafted, at::kBFloat16), doctest::Contains(part), Error);
        };
        const DecodedText far = text({5, 7}, {{8, 1, 2}, {16, 6, 14}});
        fails_with(far, "row 3");
        fails_with(far, "at token 1");
        fails_with(far, "token 6 (logit 16, before token 7 with 13)");
        fails_with(far, "token 7 (logit 16, before token 6 with 14)");
        // Close leads over other tokens say nothing about these two.
        fails_with(text({5, 9}, {{8, 1, 2}, {16, 8, 15.99F}}), "token 9");
        fails_with(text({5, 9}, {{8, 1, 2}, {NAN, 6, 15.99F}}), "token 9");
    }

    TEST_CASE("a text that ends early is a fault of ours") {
        CHECK_THROWS_WITH_AS(
            compare(text({5, 6}, {{8, 1, 2}, {9, 1, 3}}), text({5}, {{8, 1, 2}}), at::kFloat),
            doctest::Contains("2 tokens plain, 1 drafted"),
            Error);
    }

    TEST_CASE("ties grow with the logit and with the coarseness of the numbers") {
        CHECK(tie_distance(at::kBFloat16, 16) == 0.25);
        CHECK(tie_distance(at::kBFloat16, -16) == 0.25);
        CHECK(tie_distance(at::kFloat, 16) == 16 * 0x1p-16);
    }
}

}  // namespace dflash::eval
