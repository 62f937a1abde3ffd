// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/train/numeric_policy.hpp>

#include <cmath>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <limits>

namespace dflash::train {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Four rows of two samples each on two drafters, all finite.
std::vector<RowEvidence> finite_rows() {
    std::vector<RowEvidence> rows;
    for (std::int64_t i = 0; i < 4; ++i) {
        rows.push_back({.samples = {10 * i, 10 * i + 1},
                        .loss = 1,
                        .largest_feature = 5,
                        .gradient_so_far = 0.1,
                        .drafter = i % 2});
    }
    return rows;
}

const std::vector<GradientEvidence> kFinite = {{"first", 1}, {"second", 1}, {"second", 1}};

NonFinite bad_loss() {
    return {.source = NonFinite::Source::Loss,
            .tensor = "loss",
            .samples = {3, 4},
            .rows = 1,
            .rows_of_step = 4};
}

NumericPolicy policy() {
    return {"runs/a", [](SampleId id) { return fmt::format("data.jsonl:{}", id + 1); }};
}

/// The error of a step, which must be one.
Error error_of(NumericPolicy& policy, std::int64_t step, const NonFinite& reason) {
    try {
        policy.take(step, reason);
    } catch (const Error& error) {
        return error;
    }
    FAIL("step " << step << " ends no run");
    return {ErrorKind::Internal, {}};
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("train.numeric_policy") {
    TEST_CASE("features come before losses, and losses before gradients") {
        std::vector<RowEvidence> rows = finite_rows();
        std::vector<GradientEvidence> gradients = kFinite;
        gradients[0].norm = NAN;
        rows[1].gradient_so_far = NAN;
        rows[3].gradient_so_far = NAN;  // of the same drafter: the sum stays NaN
        NonFinite found = find_non_finite(rows, gradients);
        CHECK((found.source == NonFinite::Source::Gradient));
        CHECK(found.tensor == "gradient of first");
        CHECK((found.samples == std::vector<SampleId>{10, 11}));
        CHECK(found.rows == 1);
        CHECK(found.rows_of_step == 4);

        rows[2].loss = kInfinity;
        rows[0].loss = NAN;
        found = find_non_finite(rows, gradients);
        CHECK((found.source == NonFinite::Source::Loss));
        CHECK(found.tensor == "loss");
        CHECK((found.samples == std::vector<SampleId>{0, 1, 20, 21}));

        rows[3].largest_feature = kInfinity;
        found = find_non_finite(rows, gradients);
        CHECK((found.source == NonFinite::Source::Features));
        CHECK((found.samples == std::vector<SampleId>{30, 31}));
    }

    TEST_CASE("of gradients the last weight is named, which the backward pass makes first") {
        std::vector<GradientEvidence> gradients = kFinite;
        gradients[0].norm = NAN;
        gradients[1].norm = kInfinity;
        CHECK(find_non_finite(finite_rows(), gradients).tensor == "gradient of second");
    }

    TEST_CASE("a row on each drafter can break the gradient") {
        std::vector<RowEvidence> rows = finite_rows();
        for (const std::size_t i : {std::size_t{0}, std::size_t{2}, std::size_t{3}}) {
            rows[i].gradient_so_far = kInfinity;
        }
        CHECK((find_non_finite(rows, kFinite).samples == std::vector<SampleId>{0, 1, 30, 31}));
    }

    TEST_CASE("a gradient that overflows only in the sum concerns all rows") {
        const NonFinite found = find_non_finite(finite_rows(), {{"first", kInfinity}});
        CHECK(found.rows == 4);
        CHECK(found.samples.size() == 8);
    }

    TEST_CASE("the third skipped step in a row ends the run, a good one between starts anew") {
        NumericPolicy p = policy();
        CHECK_FALSE(p.take(1, std::nullopt));
        for (const std::int64_t step : {2, 5, 8}) {
            CHECK(p.take(step, bad_loss()));
            CHECK(p.take(step + 1, bad_loss()));
            if (step < 8) {
                CHECK_FALSE(p.take(step + 2, std::nullopt));
            }
        }
        CHECK(p.skipped() == 6);
        const Error error = error_of(p, 10, bad_loss());
        CHECK((error.kind() == ErrorKind::Numeric));
        CHECK(contains(error.parts().what, "3 steps in a row were skipped (8, 9, 10)"));
    }

    TEST_CASE("ten skipped among the last thousand end the run, from the first step on") {
        NumericPolicy young = policy();
        for (std::int64_t step = 1; step <= 18; ++step) {
            const bool bad = step % 2 == 0;
            CHECK(young.take(step, bad ? std::optional(bad_loss()) : std::nullopt).has_value() ==
                  bad);
        }
        young.take(19, std::nullopt);
        CHECK(contains(error_of(young, 20, bad_loss()).parts().what,
                       "10 of the last 20 steps were skipped, expected less than 10 of 1000"));

        // One in 112 is under 1 %, one in 111 is over it.
        const auto steps_until_end = [](std::int64_t period) {
            NumericPolicy p = policy();
            for (std::int64_t step = 1; step <= 5000; ++step) {
                try {
                    p.take(step, step % period == 0 ? std::optional(bad_loss()) : std::nullopt);
                } catch (const Error& error) {
                    CHECK(contains(error.parts().what, "of the last"));
                    return step;
                }
            }
            return std::int64_t{-1};
        };
        CHECK(steps_until_end(112) == -1);
        CHECK(steps_until_end(111) == 1110);
    }

    TEST_CASE("a warning names step, tensor, samples with their places, and the count") {
        NumericPolicy p = policy();
        p.take(6, std::nullopt);
        const std::string warning = p.take(7, bad_loss()).value();
        for (const char* part : {"step 7 is skipped",
                                 "loss not finite in 1 of its 4 rows",
                                 "samples 3 (data.jsonl:4), 4)",
                                 "1 skipped in this run"}) {
            CAPTURE(warning);
            CHECK(contains(warning, part));
        }
        NonFinite many = bad_loss();
        many.samples.assign(100, 1);
        CHECK(contains(p.take(8, many).value(), "and 84 more"));
        NumericPolicy resumed(
            "runs/a", [](SampleId) { return ""; }, /*skipped_before=*/4);
        CHECK(contains(resumed.take(9, bad_loss()).value(), "5 skipped in this run"));
        CHECK(resumed.skipped() == 5);
    }

    TEST_CASE("the error tells features that are not finite from a drafter that diverged") {
        const auto end_with = [](const NonFinite& first, bool steps_before) {
            NumericPolicy p = policy();
            if (steps_before) {
                p.take(1, std::nullopt);
            }
            p.take(2, first);
            p.take(3, bad_loss());
            return error_of(p, 4, bad_loss()).parts();
        };
        NonFinite features = bad_loss();
        features.source = NonFinite::Source::Features;
        features.tensor = "features of the target";
        features.samples = {77};
        const ErrorParts of_target = end_with(features, true);
        CHECK(contains(of_target.what, "at step 2"));
        CHECK(contains(of_target.what, "features of the target"));
        CHECK(contains(of_target.where, "77 (data.jsonl:78)"));
        CHECK(contains(of_target.cause, "the target computes NaN or infinity"));
        CHECK_FALSE(contains(of_target.hint, "train.lr"));

        const ErrorParts diverged = end_with(bad_loss(), true);
        CHECK(contains(diverged.cause, "the drafter diverged"));
        CHECK(contains(diverged.hint, "train.lr"));
        CHECK(contains(diverged.hint, "--init runs/a/latest/draft"));

        const ErrorParts from_the_start = end_with(bad_loss(), false);
        CHECK(contains(from_the_start.hint, "weights of the drafter"));
    }
}

}  // namespace dflash::train
