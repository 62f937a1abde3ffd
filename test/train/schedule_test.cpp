// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/train/schedule.hpp>

#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <numbers>
#include <string>

namespace dflash::train {
namespace {

TrainSettings settings(const std::string& schedule) {
    TrainSettings result;
    result.lr = 2;
    result.schedule = schedule;
    result.warmup_fraction = 0.1;
    result.min_lr_fraction = 0.25;
    result.wsd_decay_fraction = 0.2;
    return result;
}

TEST_SUITE("train.schedule") {
    TEST_CASE("cosine rises over the warm-up and falls to the floor along half a cosine") {
        const TrainSettings cosine = settings("cosine");

        struct Point {
            double done, rate;
        };

        for (const auto& [done, rate] : {Point{0, 0},
                                         Point{0.05, 1},
                                         Point{0.1, 2},
                                         Point{0.55, 2 * (0.25 + 0.75 * 0.5)},
                                         Point{1, 0.5},
                                         Point{1.5, 0.5},
                                         Point{-1, 0}}) {
            CAPTURE(done);
            CHECK(learning_rate(cosine, done) == doctest::Approx(rate));
        }
    }

    TEST_CASE("wsd stays at the peak and falls over the last part") {
        const TrainSettings wsd = settings("wsd");

        struct Point {
            double done, rate;
        };

        for (const auto& [done, rate] : {Point{0.05, 1},
                                         Point{0.1, 2},
                                         Point{0.5, 2},
                                         Point{0.8, 2},
                                         Point{0.9, 2 * (1 - 0.75 * 0.5)},
                                         Point{1, 0.5}}) {
            CAPTURE(done);
            CHECK(learning_rate(wsd, done) == doctest::Approx(rate));
        }
    }

    TEST_CASE("no step is above the peak, and without warm-up the first is at it") {
        for (const char* name : {"cosine", "wsd"}) {
            for (const double warmup : {0.0, 0.04, 0.9, 1.0}) {
                TrainSettings s = settings(name);
                s.warmup_fraction = warmup;
                double previous = learning_rate(s, 0);
                CHECK(previous == (warmup == 0 ? 2 : 0));
                for (int i = 1; i <= 1000; ++i) {
                    const double rate = learning_rate(s, i / 1000.0);
                    CHECK(rate >= 0);
                    CHECK(rate <= 2);
                    // Smooth: no jump between the parts. The steepest are the rise over the
                    // warm-up, half a cosine over the rest, and the fall over wsd's last fifth.
                    const double rise = warmup > 0 ? 2 / warmup : 0;
                    const double cosine =
                        warmup < 1 ? 2 * 0.75 * std::numbers::pi / 2 / (1 - warmup) : 0;
                    const double fall = 2 * 0.75 / 0.2;
                    const double steepest = std::max({rise, cosine, fall}) / 1000 * (1 + 1e-9);
                    CHECK(std::abs(rate - previous) <= steepest);
                    previous = rate;
                }
            }
        }
    }

    TEST_CASE("an unknown schedule is an internal error") {
        CHECK_THROWS_AS(learning_rate(settings("linear"), 0.5), Error);
    }
}

}  // namespace
}  // namespace dflash::train
