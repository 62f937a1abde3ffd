// SPDX-License-Identifier: Apache-2.0
#include <dflash/train/eval_budget.hpp>

#include <doctest/doctest.h>

namespace dflash::train {
namespace {

struct Counts {
    int judged = 0;
    int decoded = 0;
};

/// A run of 1,000 s in which either would come every second.
Counts spend(EvalBudget& budget, double judging_s, double decoding_s) {
    Counts counts;
    for (int second = 1; second <= 1000; ++second) {
        const double now = second;
        if (!budget.allows_judging(now)) {
            continue;
        }
        budget.judged_s += judging_s;
        ++counts.judged;
        if (budget.decodes && budget.allows_decoding(now, decoding_s)) {
            budget.decoded_s += decoding_s;
            ++counts.decoded;
        }
    }
    return counts;
}

}  // namespace

TEST_SUITE("train.eval_budget") {
    TEST_CASE("held-out rows alone use all of it") {
        EvalBudget budget{.max_fraction = 0.03};
        spend(budget, 1, 0);
        CHECK(budget.judged_s >= 30);
        CHECK(budget.judged_s <= 31);
    }

    TEST_CASE("real decoding has its turn, whatever either costs, and both stay within it") {
        for (const double judging_s : {0.01, 0.5, 2.0}) {
            for (const double decoding_s : {0.1, 3.0, 12.0}) {
                CAPTURE(judging_s);
                CAPTURE(decoding_s);
                EvalBudget budget{.max_fraction = 0.03, .decodes = true};
                const Counts counts = spend(budget, judging_s, decoding_s);
                CHECK((counts.judged >= 500 || budget.judged_s >= 10));
                // A cheap one comes with most of the others, a dear one uses its part.
                CHECK((2 * counts.decoded >= counts.judged || budget.decoded_s >= 10));
                CHECK(budget.judged_s + budget.decoded_s <= 30 + judging_s);
            }
        }
    }
}

}  // namespace dflash::train
