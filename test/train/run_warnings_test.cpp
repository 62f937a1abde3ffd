// SPDX-License-Identifier: Apache-2.0
#include <dflash/train/run_warnings.hpp>

#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <iterator>
#include <string>
#include <vector>

namespace dflash::train {
namespace {

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// A run whose steps take 10 s, with rates that a test sets.
struct FakeRun {
    SpeedWatch watch;
    SpeedSample now{};
    double tokens_per_s = 1000;
    double drafter_waits = 0.2;  // shares of time
    double target_waits = 0.1;
    double data_waits = 0.0;
    std::vector<Notice> notices{};
    std::vector<double> told_at{};

    void train(double seconds) {
        constexpr double kStep_s = 10;
        for (double done = 0; done < seconds; done += kStep_s) {
            now.at_s += kStep_s;
            now.tokens += std::llround(kStep_s * tokens_per_s);
            now.drafter_waited_s += kStep_s * drafter_waits;
            now.target_waited_s += kStep_s * target_waits;
            now.data_waited_s += kStep_s * data_waits;
            if (auto notice = watch.take(now)) {
                notices.push_back(*notice);
                told_at.push_back(now.at_s);
            }
        }
    }
};

}  // namespace

TEST_SUITE("train.run_warnings") {
    TEST_CASE("a running median is that of the last values") {
        RunningMedian median(5);
        std::vector<double> values;
        double x = 0.3;
        for (int i = 0; i < 200; ++i) {
            x = std::fmod(x * 997.13 + 0.7, 10.0);
            const double value = std::floor(x);  // equal ones among them
            median.add(value);
            values.push_back(value);
            std::vector<double> last(values.end() - std::min<std::ptrdiff_t>(5, std::ssize(values)),
                                     values.end());
            std::sort(last.begin(), last.end());
            const std::size_t n = last.size();
            CAPTURE(i);
            CHECK(median.size() == n);
            CHECK(median.median() == (last[(n - 1) / 2] + last[n / 2]) / 2);
        }
    }

    TEST_CASE("a loss above twice its median for 100 steps is told once, and when it is over") {
        LossWatch watch;
        std::int64_t step = 0;
        for (step = 1; step <= 300; ++step) {
            CHECK_FALSE(watch.take(step, step % 2 == 0 ? 2.9 : 3.1));
        }
        step = 300;
        while (step < 399) {
            CHECK_FALSE(watch.take(++step, 6.5));
        }
        const auto warning = watch.take(++step, 6.5);
        REQUIRE(warning);
        CHECK(warning->warning);
        CHECK(contains(warning->text, "since step 301"));
        CHECK(contains(warning->text, "6.5"));
        // However long it lasts, it does not become the measure.
        while (step < 5000) {
            CHECK_FALSE(watch.take(++step, 50.0));
        }
        const auto over = watch.take(++step, 3.2);
        REQUIRE(over);
        CHECK_FALSE(over->warning);
        CHECK(contains(over->text, "after 4700 steps"));
        for (int i = 0; i < 500; ++i) {
            CHECK_FALSE(watch.take(++step, 3.0));
        }
    }

    TEST_CASE("99 steps, or twice the median exactly, or too young a run are no reason") {
        LossWatch watch;
        std::int64_t step = 0;
        for (int i = 0; i < 99; ++i) {
            CHECK_FALSE(watch.take(++step, 3.0));
        }
        CHECK_FALSE(watch.take(++step, 3.0));
        for (int round = 0; round < 3; ++round) {
            for (int i = 0; i < 99; ++i) {
                CHECK_FALSE(watch.take(++step, 30.0));
            }
            CHECK_FALSE(watch.take(++step, 6.0));
        }
        LossWatch young;
        for (step = 1; step <= 99; ++step) {
            CHECK_FALSE(young.take(step, 1.0));
        }
        LossWatch rising;  // the median is that of the run itself
        for (step = 1; step <= 3000; ++step) {
            CHECK_FALSE(rising.take(step, 1.0 + 0.001 * static_cast<double>(step)));
        }
    }

    TEST_CASE("the noise of the first steps and a falling loss are no reason") {
        LossWatch watch;
        for (std::int64_t step = 1; step <= 3000; ++step) {
            CHECK_FALSE(watch.take(step, 3 + 50 * std::exp(-static_cast<double>(step) / 50)));
        }
    }

    TEST_CASE("a speed that is 20 % down for ten minutes is told once, with who waits") {
        FakeRun run;
        run.train(1800);
        CHECK(run.notices.empty());
        run.tokens_per_s = 750;
        run.drafter_waits = 0.45;
        run.train(3600);
        REQUIRE(run.notices.size() == 1);
        CHECK(run.notices[0].warning);
        CHECK(run.told_at[0] >= 1800 + 600);
        CHECK(run.told_at[0] <= 1800 + 600 + 2 * SpeedWatch::kStretch_s);
        CAPTURE(run.notices[0].text);
        CHECK(contains(run.notices[0].text, "750 tok/s over the last 10 min"));
        CHECK(contains(run.notices[0].text, "25 % below the 1,000"));
        CHECK(contains(run.notices[0].text,
                       "the drafters waited for the target 45 % of the time, 20 % before"));
        CHECK(contains(run.notices[0].text, "look at the target's devices"));
        run.tokens_per_s = 980;
        run.train(120);
        REQUIRE(run.notices.size() == 2);
        CHECK_FALSE(run.notices[1].warning);
        CHECK(contains(run.notices[1].text, "the speed is back at 980 tok/s"));
        run.tokens_per_s = 700;
        run.train(1200);
        CHECK(run.notices.size() == 3);  // the next episode
    }

    TEST_CASE("it says which side is waited for") {
        struct Case {
            double drafter, target, data;
            const char* who;
        };

        for (const Case& c : {Case{0.2, 0.4, 0.0, "the target waited for the drafters 40 %"},
                              Case{0.5, 0.0, 0.3, "the target waited for data 30 %"},
                              Case{0.2, 0.1, 0.0, "nobody waits more than before"}}) {
            FakeRun run;
            run.train(1200);
            run.tokens_per_s = 500;
            run.drafter_waits = c.drafter;
            run.target_waits = c.target;
            run.data_waits = c.data;
            run.train(1200);
            REQUIRE(run.notices.size() == 1);
            CAPTURE(run.notices[0].text);
            CHECK(contains(run.notices[0].text, c.who));
        }
    }

    TEST_CASE("nine minutes, 19 %, or a run that was always slow are no reason") {
        FakeRun run;
        run.train(1800);
        for (int i = 0; i < 5; ++i) {
            run.tokens_per_s = 100;
            run.train(480);
            run.tokens_per_s = 1000;
            run.train(300);
        }
        CHECK(run.notices.empty());
        run.tokens_per_s = 815;
        run.train(7200);
        CHECK(run.notices.empty());
        FakeRun slow;
        slow.tokens_per_s = 1000;
        slow.train(60);  // the first minute fills the slots
        slow.tokens_per_s = 300;
        slow.train(7200);
        CHECK(slow.notices.empty());
    }

    TEST_CASE("the time of evaluations and saves does not count") {
        FakeRun run;
        run.train(1800);
        for (int i = 0; i < 200; ++i) {
            run.train(50);
            run.now.at_s += 300;  // an evaluation much longer than the training between
            run.watch.pause();
        }
        CHECK(run.notices.empty());
        FakeRun without_pause;
        without_pause.train(1800);
        for (int i = 0; i < 200; ++i) {
            without_pause.train(50);
            without_pause.now.at_s += 300;
        }
        CHECK(without_pause.notices.size() == 1);
    }

    TEST_CASE("steps longer than the whole period are judged by themselves") {
        SpeedWatch watch;
        SpeedSample now{};
        std::vector<Notice> notices;
        const auto step = [&](double seconds) {
            now.at_s += seconds;
            now.tokens += 100000;
            if (auto notice = watch.take(now)) {
                notices.push_back(*notice);
            }
        };
        for (int i = 0; i < 10; ++i) {
            step(900);
        }
        CHECK(notices.empty());
        step(1300);
        CHECK(notices.size() == 1);
        step(900);
        CHECK(notices.size() == 2);
    }

    TEST_CASE("a best drafter that no checkpoint holds is told at the end") {
        const std::vector<HeldOutAcceptance> evaluations{{0, 1.0}, {100, 2.7}, {200, 2.5}};
        const auto lost = lost_best(evaluations, {200, 2.5});
        REQUIRE(lost);
        CHECK(contains(*lost, "2.700 at step 100, 2.500 at step 200"));
        CHECK(contains(*lost, "less training"));
        // The last one is better than what was saved last: nothing has fallen.
        const auto early = lost_best({{0, 1.0}, {200, 2.5}}, {100, 2.0});
        REQUIRE(early);
        CHECK_FALSE(contains(*early, "less training"));
        CHECK_FALSE(lost_best(evaluations, {100, 2.7}));
        CHECK_FALSE(lost_best({{100, 2.505}, {200, 2.5}}, {200, 2.5}));
        CHECK_FALSE(lost_best({}, {200, 2.5}));
    }
}

}  // namespace dflash::train
