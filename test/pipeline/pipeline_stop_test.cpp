// SPDX-License-Identifier: Apache-2.0
#include "scenario.hpp"

#include <dflash/core/error.hpp>

#include <atomic>
#include <chrono>
#include <doctest/doctest.h>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>

namespace dflash::pipeline {
namespace {

/// The rows that arrived are the first ones, and nothing went wrong.
void check_clean_stop(const Scenario& scenario) {
    const std::string text = to_string(scenario);
    CAPTURE(text);
    const Outcome outcome = run(scenario);
    CHECK(outcome.next_error == "");
    CHECK(outcome.stop_error == "");
    CHECK(outcome.num_wrong_slots == 0);
    std::vector<std::int64_t> rows(outcome.rows.size());
    std::iota(rows.begin(), rows.end(), 0);
    CHECK(outcome.rows == rows);
    CHECK(outcome.stats.rows_delivered == std::ssize(rows));
}

/// Stages that never fail, for a pipeline made by hand.
struct Stages {
    FirstError first_error;
    FakeSource source{1000, {}};
    FakeEncoder encoder{[](std::int64_t) { return true; }, 0, 1, {}};
    FakePacker packer{4, 2, 1, {}};
    FakeSlots slots{3};
    FakeReplica replica{slots, first_error, 100, 1, {}};
    FakeTarget target{replica};

    std::unique_ptr<Pipeline> make() {
        return std::make_unique<Pipeline>(PipelineOptions{.num_slots = 3, .window = 4},
                                          source,
                                          encoder,
                                          packer,
                                          target,
                                          first_error);
    }
};

}  // namespace

TEST_SUITE("pipeline.stop") {
    TEST_CASE("stop() ends the run after any row") {
        for (int rows = 0; rows <= 42; ++rows) {
            for (const bool keep : {false, true}) {
                check_clean_stop({.num_samples = 40,
                                  .window = 7,
                                  .num_slots = 1 + rows % 5,
                                  .num_replicas = rows % 4,
                                  .num_threads = 1 + rows % 3,
                                  .max_row_samples = 1,
                                  .max_pause_us = rows % 3 == 0 ? 50 : 0,
                                  .rows_held = 1 + rows % 5,
                                  .stop_after = rows,
                                  .keep_leases = keep,
                                  .seed = static_cast<std::uint64_t>(rows)});
            }
        }
    }

    TEST_CASE("stop() on one core ends the run after any row") {
        const OneCore one_core;
        for (int rows = 0; rows <= 20; rows += 3) {
            check_clean_stop({.num_samples = 40,
                              .window = 7,
                              .num_threads = 1,
                              .max_row_samples = 1,
                              .stop_after = rows,
                              .keep_leases = rows % 2 == 0});
        }
    }

    TEST_CASE("after stop() no sample is read, encoded or packed and no row goes to the target") {
        struct Counting final : Encoder {
            data::Sample encode(const data::SampleRef& ref) override {
                ++calls;
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                data::Sample sample;
                sample.ref = ref;
                sample.tokens = {1};
                return sample;
            }

            std::atomic<int> calls = 0;
        };

        FirstError first_error;
        FakeSource source(100000, {});
        Counting encoder;
        FakePacker packer(1000, 2, 1, {});
        FakeSlots slots(3);
        FakeReplica replica(slots, first_error, 0, 1, {});
        FakeTarget target(replica);
        Pipeline pipeline(
            {.num_slots = 3, .window = 1000}, source, encoder, packer, target, first_error);
        pipeline.start();
        while (encoder.calls < 3) {
            std::this_thread::yield();
        }
        pipeline.stop();
        CHECK(encoder.calls < 20);  // 2001 samples may be in flight: 5 s at two threads
        const int calls = encoder.calls;
        CHECK(pipeline.stats().samples_read < 2002);
        CHECK_FALSE(pipeline.next());
        CHECK(encoder.calls == calls);
    }

    TEST_CASE("stop() works before start(), twice, and after the end; next() is empty then") {
        {
            Stages stages;
            auto pipeline = stages.make();
            pipeline->stop();
            CHECK_FALSE(pipeline->next());
            CHECK_THROWS_AS(pipeline->start(), Error);
        }
        {
            Stages stages;
            auto pipeline = stages.make();
            CHECK_THROWS_AS(pipeline->next(), Error);
            pipeline->start();
            CHECK_THROWS_AS(pipeline->start(), Error);
            pipeline->stop();
            pipeline->stop();
            CHECK_FALSE(pipeline->next());
        }
        {
            Stages stages;
            auto pipeline = stages.make();
            pipeline->start();
            while (std::optional<RowLease> lease = pipeline->next()) {
                stages.slots.let_go(lease->slot());
            }
            CHECK_FALSE(pipeline->next());
            pipeline->stop();
            CHECK_FALSE(pipeline->next());
        }
    }

    TEST_CASE("a pipeline that is destroyed without stop() ends") {
        for (int rows = 0; rows < 6; ++rows) {
            Stages stages;
            auto pipeline = stages.make();
            if (rows > 0) {
                pipeline->start();
            }
            for (int i = 1; i < rows; ++i) {
                std::optional<RowLease> lease = pipeline->next();
                REQUIRE(lease);
                stages.slots.let_go(lease->slot());
            }
            pipeline.reset();
            CHECK_FALSE(stages.first_error.failed());
        }
    }

    TEST_CASE("stop() waits for rows held elsewhere") {
        Stages stages;
        auto pipeline = stages.make();
        pipeline->start();
        std::optional<RowLease> lease = pipeline->next();
        REQUIRE(lease);
        std::atomic<bool> released = false;
        std::thread other([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(30));
            released = true;
            lease.reset();
        });
        pipeline->stop();
        CHECK(released);
        other.join();
    }

    TEST_CASE("stop() and an error at the same time end the run") {
        for (int i = 0; i < 60; ++i) {
            CAPTURE(i);
            Stages stages;
            auto pipeline = stages.make();
            pipeline->start();
            std::optional<RowLease> lease;
            if (i % 2 == 0) {
                lease = pipeline->next();
            }
            std::thread failing([&] {
                std::this_thread::sleep_for(std::chrono::microseconds(i * 10));
                stages.first_error.store(std::make_exception_ptr(std::runtime_error("elsewhere")));
            });
            std::thread releasing([&] {
                std::this_thread::sleep_for(std::chrono::microseconds(i % 7 * 50));
                lease.reset();
            });
            std::string error;
            try {
                pipeline->stop();
            } catch (const std::exception& thrown) {
                error = thrown.what();
            }
            CHECK((error == "elsewhere" || error.empty()));  // the error may come too late
            releasing.join();
            pipeline.reset();
            failing.join();
        }
    }
}

}  // namespace dflash::pipeline
