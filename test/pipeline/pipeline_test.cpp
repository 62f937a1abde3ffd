// SPDX-License-Identifier: Apache-2.0
#include "scenario.hpp"

#include <dflash/core/error.hpp>

#include <atomic>
#include <chrono>
#include <doctest/doctest.h>
#include <random>
#include <thread>
#include <vector>

namespace dflash::pipeline {
namespace {

/// Any shape of run, most of them small.
Scenario random_scenario(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&random](int low, int high) {
        return std::uniform_int_distribution<int>(low, high)(random);
    };
    Scenario s;
    s.seed = seed;
    s.window = pick(0, 3) == 0 ? pick(1, 256) : pick(1, 16);
    s.num_samples = pick(0, 4) == 0 ? pick(0, 3) : pick(1, 400);
    s.num_slots = pick(1, 9);
    s.num_replicas = pick(0, 5);
    s.capacity = pick(1, 3);
    s.num_threads = pick(1, 4);
    s.max_row_samples = pick(1, 12);
    s.max_pause_us = pick(0, 2) == 0 ? pick(1, 120) : 0;
    s.rows_held = pick(1, s.num_slots);
    s.release_elsewhere = pick(0, 1) == 1;
    switch (pick(0, 3)) {
        case 0:
            s.usable = [](std::int64_t i) { return i % 3 != 0; };
            break;
        case 1:
            // Whole windows are unusable.
            s.usable = [w = s.window](std::int64_t i) { return i / w % 2 == 0; };
            break;
        default:
            break;
    }
    return s;
}

void check_complete_run(const Scenario& scenario) {
    const std::string text = to_string(scenario);
    CAPTURE(text);
    const std::string wrong = check_complete(scenario, run(scenario));
    CHECK(wrong == "");
}

}  // namespace

TEST_SUITE("pipeline.pipeline") {
    TEST_CASE("every row arrives once and in order") {
        for (std::uint64_t seed = 0; seed < 150; ++seed) {
            check_complete_run(random_scenario(seed));
        }
    }

    TEST_CASE("every row arrives once and in order on one core and one thread") {
        const OneCore one_core;
        for (std::uint64_t seed = 1000; seed < 1060; ++seed) {
            Scenario scenario = random_scenario(seed);
            scenario.num_threads = seed % 2 == 0 ? 1 : scenario.num_threads;
            check_complete_run(scenario);
        }
    }

    TEST_CASE("END arrives at every place of a window") {
        for (const std::int64_t window : {1, 2, 5}) {
            for (std::int64_t num_samples = 0; num_samples <= 3 * window + 1; ++num_samples) {
                for (const int num_slots : {1, 3}) {
                    check_complete_run(
                        {.num_samples = num_samples, .window = window, .num_slots = num_slots});
                }
            }
        }
    }

    TEST_CASE("dropped samples, unusable windows and empty rows pass through") {
        const std::vector<std::function<bool(std::int64_t)>> patterns = {
            [](std::int64_t) { return false; },
            [](std::int64_t i) { return i == 99; },
            [](std::int64_t i) { return i == 0; },
            [](std::int64_t i) { return i / 8 % 3 == 1; },
        };
        const std::vector<int> empty_rows = {13, 12, 12, 9};  // of 13 windows of 8
        for (std::size_t i = 0; i < patterns.size(); ++i) {
            CAPTURE(i);
            Scenario scenario{.num_samples = 100, .window = 8};
            scenario.usable = patterns[i];
            const Outcome outcome = run(scenario);
            CHECK(check_complete(scenario, outcome) == "");
            CHECK(outcome.num_empty_rows == empty_rows[i]);
        }
    }

    TEST_CASE("the loop may hold as many rows as there are slots, and let them go in any order") {
        for (std::uint64_t seed = 0; seed < 20; ++seed) {
            check_complete_run({.num_samples = 200,
                                .num_slots = 7,
                                .num_replicas = 3,
                                .max_pause_us = 30,
                                .rows_held = 7,
                                .release_elsewhere = seed % 2 == 0,
                                .seed = seed});
        }
    }

    TEST_CASE("no more than two windows of samples and END are read ahead") {
        for (const std::int64_t window : {1, 4, 32}) {
            CAPTURE(window);
            // Every row holds one sample and the only slot; the loop takes none.
            const Outcome outcome = run({.num_samples = 1000,
                                         .window = window,
                                         .num_slots = 1,
                                         .num_replicas = 0,
                                         .max_row_samples = 1,
                                         .max_pause_us = 500,
                                         .stop_after = 1});
            // One row left limiter A when it took the slot, a second one after the first was
            // let go, and the input node holds one.
            CHECK(outcome.samples_read <= 2 * window + 1 + 3);
        }
    }

    TEST_CASE("statistics tell which side waits") {
        struct Slow final : TargetStage {
            void start(RowPtr, int, std::function<void()> done) override {
                std::thread([done = std::move(done), pause = pause] {
                    std::this_thread::sleep_for(std::chrono::microseconds(pause));
                    done();
                }).detach();
            }

            int pause = 0;
        };

        // Long beside what a loaded machine takes to wake a thread, which counts as waiting, too.
        constexpr int kSlow_us = 20'000;
        for (const bool slow_target : {true, false}) {
            CAPTURE(slow_target);
            FirstError first_error;
            FakeSource source(30, {});
            FakeEncoder encoder([](std::int64_t) { return true; }, 0, 1, {});
            FakePacker packer(4, 1, 1, {});
            Slow target;
            target.pause = slow_target ? kSlow_us : 100;
            Pipeline pipeline(
                {.num_slots = 2, .window = 4}, source, encoder, packer, target, first_error);
            pipeline.start();
            while (std::optional<RowLease> lease = pipeline.next()) {
                std::this_thread::sleep_for(
                    std::chrono::microseconds(slow_target ? 100 : kSlow_us));
            }
            pipeline.stop();
            const PipelineStats stats = pipeline.stats();
            CAPTURE(stats.step_waited_s);
            CAPTURE(stats.target_waited_s);
            // 30 rows at 20 ms; two rows at a time in the slow target.
            if (slow_target) {
                CHECK(stats.step_waited_s > 0.12);
                CHECK(stats.target_waited_s < stats.step_waited_s / 2);
            } else {
                CHECK(stats.target_waited_s > 0.2);
                CHECK(stats.step_waited_s < stats.target_waited_s / 2);
            }
        }
    }

    TEST_CASE("graph threads may use the cores of the thread that made the pipeline") {
        // TBB keeps its threads from run to run, and starts them from whichever thread brings work.
        struct WatchingEncoder final : Encoder {
            data::Sample encode(const data::SampleRef& ref) override {
                cpu_set_t cores;
                sched_getaffinity(0, sizeof cores, &cores);
                wrong += CPU_EQUAL(&cores, &expected) ? 0 : 1;
                std::this_thread::sleep_for(std::chrono::microseconds(300));
                data::Sample sample;
                sample.ref = ref;
                sample.tokens = {1};
                return sample;
            }

            cpu_set_t expected = {};
            std::atomic<int> wrong = 0;
        };

        const auto num_wrong = [] {
            FirstError first_error;
            FakeSource source(150, {});
            WatchingEncoder encoder;
            sched_getaffinity(0, sizeof encoder.expected, &encoder.expected);
            FakePacker packer(8, 4, 1, {});
            FakeSlots slots(2);
            FakeReplica replica(slots, first_error, 0, 1, {});
            FakeTarget target(replica);
            Pipeline pipeline({.num_slots = 2, .window = 8, .num_threads = 4},
                              source,
                              encoder,
                              packer,
                              target,
                              first_error);
            pipeline.start();
            while (std::optional<RowLease> lease = pipeline.next()) {
                slots.let_go(lease->slot());
            }
            pipeline.stop();
            return encoder.wrong.load();
        };

        CHECK(num_wrong() == 0);
        {
            const OneCore one_core;
            CHECK(num_wrong() == 0);
        }
        CHECK(num_wrong() == 0);
    }

    TEST_CASE("a lease moves, and releases once") {
        FirstError first_error;
        FakeSource source(10, {});
        FakeEncoder encoder([](std::int64_t) { return true; }, 0, 1, {});
        FakePacker packer(2, 1, 1, {});
        FakeSlots slots(2);
        FakeReplica replica(slots, first_error, 0, 1, {});
        FakeTarget target(replica);
        Pipeline pipeline(
            {.num_slots = 2, .window = 2}, source, encoder, packer, target, first_error);
        pipeline.start();
        std::optional<RowLease> first = pipeline.next();
        std::optional<RowLease> second = pipeline.next();
        REQUIRE(first);
        REQUIRE(second);
        RowLease moved = std::move(*first);
        CHECK(moved.row()->index == 0);
        CHECK(moved.slot() == 0);
        CHECK(first->row() == nullptr);
        first->release();
        slots.let_go(0);
        moved = std::move(*second);
        CHECK(moved.row()->index == 1);
        std::optional<RowLease> third = pipeline.next();
        REQUIRE(third);
        CHECK(third->slot() == 0);
        moved.release();
        moved.release();
        third.reset();
        pipeline.stop();
    }
}

}  // namespace dflash::pipeline
