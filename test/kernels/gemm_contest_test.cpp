// SPDX-License-Identifier: Apache-2.0
#include <dflash/kernels/gemm_contest.hpp>

#include <doctest/doctest.h>
#include <utility>
#include <vector>

namespace dflash::kernels {
namespace {

/// A chip with a clock that falls while it works, and algorithms of known speed.
class FakeChip {
  public:
    /// ms of a call of every algorithm of every contest at full clock.
    explicit FakeChip(std::vector<std::vector<double>> ms) : ms_(std::move(ms)) {}

    std::vector<GemmContest> contests() const {
        std::vector<GemmContest> result;
        for (const std::vector<double>& of_class : ms_) {
            result.push_back({of_class.size(), of_class.front()});
        }
        return result;
    }

    RunGemmVisits run() {
        return [this](const std::vector<GemmVisit>& visits) {
            queues_.push_back(visits);
            std::vector<double> result;
            for (const GemmVisit& visit : visits) {
                double total = 0;
                for (int call = 0; call < visit.calls; ++call) {
                    // Slower by up to 30 % as it heats up, and a little up and down.
                    const double slowdown = 1 + 0.3 * busy_ms_ / (busy_ms_ + 50);
                    wobble_ = (wobble_ * 1103515245U + 12345U) % 2147483648U;
                    const double noise =
                        1 + wobble * (static_cast<double>(wobble_ % 2001U) / 1000.0 - 1);
                    const double ms = ms_[visit.contest][visit.algorithm] * slowdown * noise;
                    total += ms;
                    busy_ms_ += ms;
                }
                result.push_back(total / visit.calls);
            }
            return result;
        };
    }

    double wobble = 0.004;  ///< share of a call's time

    const std::vector<std::vector<GemmVisit>>& queues() const { return queues_; }

    double busy_ms() const { return busy_ms_; }

  private:
    std::vector<std::vector<double>> ms_;
    std::vector<std::vector<GemmVisit>> queues_;
    double busy_ms_ = 0;
    unsigned wobble_ = 1;
};

}  // namespace

TEST_SUITE("kernels.gemm_contest") {
    TEST_CASE("the fastest algorithm wins where it is faster than the guess by the margin") {
        struct Case {
            std::vector<double> ms;
            std::size_t winner;
        };

        for (const Case& c : {Case{{1.0, 0.9, 1.1}, 1},
                              Case{{1.0, 1.1, 0.95, 0.9, 0.93}, 3},
                              Case{{1.0, 0.99, 1.0}, 0},  // less than the margin
                              Case{{1.0}, 0},
                              Case{{1.0, 1.5, 1.2}, 0},
                              Case{{0.01, 0.009}, 1},  // many calls in a visit
                              Case{{30, 29, 31}, 1}}) {
            CAPTURE(c.ms);
            FakeChip chip({c.ms});
            const auto verdicts = hold_contests(chip.contests(), 300, chip.run());
            REQUIRE(verdicts.size() == 1);
            CHECK(verdicts[0].algorithm == c.winner);
            CHECK(verdicts[0].ms <= verdicts[0].guess_ms);
            CHECK((verdicts[0].ms < 0.985 * verdicts[0].guess_ms) == (c.winner != 0));
        }
    }

    TEST_CASE("noise alone never takes the place of the guess") {
        for (int seed = 0; seed < 50; ++seed) {
            CAPTURE(seed);
            std::vector<std::vector<double>> equal(4, std::vector<double>(8, 0.5 + 0.01 * seed));
            FakeChip chip(equal);
            chip.wobble = 0.015;
            for (const GemmVerdict& verdict : hold_contests(chip.contests(), 300, chip.run())) {
                CHECK(verdict.algorithm == 0);
            }
        }
    }

    TEST_CASE("classes are judged apart, in one queue behind the products that heat up") {
        FakeChip chip({{4.0, 3.6, 5.0}, {2.0, 2.1}, {1.0, 1.2, 0.8}});
        const auto verdicts = hold_contests(chip.contests(), 300, chip.run());
        REQUIRE(verdicts.size() == 3);
        CHECK(verdicts[0].algorithm == 1);
        CHECK(verdicts[1].algorithm == 0);
        CHECK(verdicts[2].algorithm == 2);
        REQUIRE(chip.queues().size() == 2);
        CHECK(chip.queues()[0].front() == GemmVisit{0, 0, 75});
        CHECK(chip.queues()[0].size() == 1 + 3 + 2 + 3);
        // The guess and one rival of two classes, five turns.
        CHECK(chip.queues()[1].size() == 1 + 2 * 5 + 2 * 5);
        CHECK(chip.busy_ms() < 300 * 1.3 + 300);
    }

    TEST_CASE("what is slower than the guess from the first is not timed again") {
        FakeChip chip({{1.0, 1.3, 1.2}, {2.0}});
        CHECK(hold_contests(chip.contests(), 300, chip.run()).size() == 2);
        CHECK(chip.queues().size() == 1);
        CHECK(hold_contests({}, 300, chip.run()).empty());
    }
}

}  // namespace dflash::kernels
