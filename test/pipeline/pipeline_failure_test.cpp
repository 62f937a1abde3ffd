// SPDX-License-Identifier: Apache-2.0
#include "scenario.hpp"

#include <dflash/core/error.hpp>

#include <atomic>
#include <chrono>
#include <doctest/doctest.h>
#include <memory>
#include <stdexcept>
#include <string>

namespace dflash::pipeline {
namespace {

/// A row with a single sample per sample, so that row k exists for every k below num_samples.
Scenario single_rows() {
    return {.num_samples = 60, .window = 5, .max_row_samples = 1};
}

void check_ends_with_fault(const Scenario& scenario) {
    const std::string text = to_string(scenario);
    CAPTURE(text);
    const Outcome outcome = run(scenario);
    CHECK(outcome.stop_error == error_text(scenario.fault));
    // next() may have handed out its last row before the error, never a different error.
    CHECK(outcome.next_error == error_text(scenario.fault));
    CHECK(outcome.seconds < 10);
    CHECK(outcome.num_wrong_slots == 0);
}

std::string what_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const std::exception& error) {
        return error.what();
    }
    return "";
}

/// A packer that breaks one rule of its contract.
class WrongPacker final : public RowPacker {
  public:
    enum class Rule { RowIndex, TooManySamples, ForgetsSamples, NoEnd, EndTooEarly, AfterEnd };

    explicit WrongPacker(Rule rule) : rule_(rule), packer_(4, 2, 1, {}) {}

    std::vector<data::PackedRow> push(data::Sample sample) override {
        const bool end = sample.ref.end;
        std::vector<data::PackedRow> rows = packer_.push(std::move(sample));
        for (data::PackedRow& row : rows) {
            row.index += rule_ == Rule::RowIndex && row.index > 3 ? 1 : 0;
            row.num_samples += rule_ == Rule::TooManySamples ? 100 : 0;
            row.num_samples = rule_ == Rule::ForgetsSamples ? 0 : row.num_samples;
            row.end = row.end || (rule_ == Rule::EndTooEarly && row.index == 5);
        }
        if (end && rule_ == Rule::NoEnd) {
            rows.pop_back();
        }
        if (end && rule_ == Rule::AfterEnd) {
            const std::int64_t next_row = rows.back().index + 1;
            rows.emplace_back().index = next_row;
        }
        return rows;
    }

  private:
    Rule rule_;
    FakePacker packer_;
};

}  // namespace

TEST_SUITE("pipeline.failure") {
    TEST_CASE("a stage that throws ends the run with its error") {
        using At = Fault::At;
        for (const At at :
             {At::Source, At::Encode, At::Pack, At::TargetStart, At::TargetForward, At::Loop}) {
            for (const std::int64_t step : {0, 1, 4, 5, 11, 29, 57}) {
                for (const int num_replicas : {0, 3}) {
                    Scenario scenario = single_rows();
                    scenario.fault = {at, step};
                    scenario.num_replicas = num_replicas;
                    scenario.num_slots = 1 + static_cast<int>(step % 4);
                    scenario.rows_held = scenario.num_slots;
                    scenario.num_threads = 1 + static_cast<int>(step % 3);
                    scenario.release_elsewhere = step % 2 == 1;
                    scenario.seed = static_cast<std::uint64_t>(step);
                    check_ends_with_fault(scenario);
                }
            }
        }
    }

    TEST_CASE("a stage that throws at END ends the run with its error") {
        using At = Fault::At;
        for (const At at : {At::Source, At::Encode, At::Pack}) {
            Scenario scenario = single_rows();
            scenario.fault = {at, scenario.num_samples};
            check_ends_with_fault(scenario);
        }
    }

    TEST_CASE("on one core a stage that throws ends the run with its error") {
        const OneCore one_core;
        using At = Fault::At;
        for (const At at : {At::Source, At::Encode, At::Pack, At::TargetForward, At::Loop}) {
            Scenario scenario = single_rows();
            scenario.fault = {at, 17};
            scenario.num_threads = 1;
            check_ends_with_fault(scenario);
        }
    }

    TEST_CASE("an error does not wait for rows that the loop still holds") {
        Scenario scenario = single_rows();
        scenario.fault = {Fault::At::Loop, 20};
        scenario.num_slots = 4;
        scenario.rows_held = 4;
        scenario.keep_leases = true;
        check_ends_with_fault(scenario);
    }

    TEST_CASE("an error ends a run whose target never answers, and late answers do nothing") {
        struct Silent final : TargetStage {
            void start(RowPtr, int, std::function<void()> done) override {
                kept.push_back(std::move(done));
            }

            std::vector<std::function<void()>> kept;
        };

        for (const int pause_ms : {0, 20}) {
            FirstError first_error;
            FakeSource source(100, {});
            FakeEncoder encoder([](std::int64_t) { return true; }, 0, 1, {});
            FakePacker packer(4, 1, 1, {});
            Silent target;
            std::thread other;
            std::string next_error;
            std::string stop_error;
            {
                Pipeline pipeline(
                    {.num_slots = 3, .window = 4}, source, encoder, packer, target, first_error);
                pipeline.start();
                other = std::thread([&] {
                    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
                    first_error.store(std::make_exception_ptr(std::runtime_error("elsewhere")));
                });
                next_error = what_of([&] { pipeline.next(); });
                stop_error = what_of([&] { pipeline.stop(); });
                other.join();
            }
            CHECK(next_error == "elsewhere");
            CHECK(stop_error == "elsewhere");
            for (const auto& done : target.kept) {
                done();
            }
        }
    }

    TEST_CASE("an error that came before the start ends the run at once") {
        FirstError first_error;
        first_error.store(std::make_exception_ptr(std::runtime_error("before")));
        FakeSource source(100, {});
        FakeEncoder encoder([](std::int64_t) { return true; }, 0, 1, {});
        FakePacker packer(4, 1, 1, {});
        FakeSlots slots(2);
        FakeReplica replica(slots, first_error, 0, 1, {});
        FakeTarget target(replica);
        Pipeline pipeline({.window = 4}, source, encoder, packer, target, first_error);
        pipeline.start();
        CHECK(what_of([&] { pipeline.next(); }) == "before");
        CHECK(what_of([&] { pipeline.stop(); }) == "before");
        CHECK(what_of([&] { pipeline.stop(); }) == "before");
    }

    TEST_CASE("a loop that leaves by an exception of its own does not hang") {
        FirstError first_error;
        FakeSource source(100, {});
        FakeEncoder encoder([](std::int64_t) { return true; }, 0, 1, {});
        FakePacker packer(4, 1, 1, {});
        FakeSlots slots(2);
        FakeReplica replica(slots, first_error, 0, 1, {});
        FakeTarget target(replica);
        const auto loop = [&] {
            Pipeline pipeline({.window = 4}, source, encoder, packer, target, first_error);
            pipeline.start();
            const std::optional<RowLease> lease = pipeline.next();
            throw std::runtime_error("loop");
        };
        CHECK(what_of(loop) == "loop");
        CHECK_FALSE(first_error.failed());
    }

    TEST_CASE("a target that answers twice is an internal error") {
        struct Twice final : TargetStage {
            void start(RowPtr row, int, std::function<void()> done) override {
                done();
                if (row->index == 5) {
                    done();
                }
            }
        };

        FirstError first_error;
        FakeSource source(100, {});
        FakeEncoder encoder([](std::int64_t) { return true; }, 0, 1, {});
        FakePacker packer(4, 1, 1, {});
        Twice target;
        Pipeline pipeline({.window = 4}, source, encoder, packer, target, first_error);
        pipeline.start();
        const std::string error = what_of([&] {
            while (pipeline.next()) {
            }
        });
        CHECK(error.find("row 5 came back twice from the target") != std::string::npos);
    }

    TEST_CASE("a packer that breaks its contract is an internal error") {
        using Rule = WrongPacker::Rule;
        const std::vector<std::pair<Rule, std::string>> rules = {
            {Rule::RowIndex, "gave row 5, expected 4"},
            {Rule::TooManySamples, "brings back"},
            {Rule::ForgetsSamples, "must bring back every sample"},
            {Rule::NoEnd, "did not answer END with END"},
            {Rule::EndTooEarly, "made END of sample"},
            {Rule::AfterEnd, "expected none after END"},
        };
        for (const auto& broken : rules) {
            const Rule rule = broken.first;
            const std::string expected = broken.second;
            CAPTURE(expected);
            FirstError first_error;
            FakeSource source(40, {});
            FakeEncoder encoder([](std::int64_t) { return true; }, 0, 1, {});
            WrongPacker packer(rule);
            FakeSlots slots(2);
            FakeReplica replica(slots, first_error, 0, 1, {});
            FakeTarget target(replica);
            Pipeline pipeline({.window = 4}, source, encoder, packer, target, first_error);
            pipeline.start();
            const std::string error = what_of([&] {
                while (std::optional<RowLease> lease = pipeline.next()) {
                    slots.let_go(lease->slot());
                }
            });
            CHECK(error.find(expected) != std::string::npos);
            CHECK(what_of([&] { pipeline.stop(); }) == error);
        }
    }

    TEST_CASE("a source out of order and an encoder that mixes samples up are internal errors") {
        struct Skipping final : SampleSource {
            data::SampleRef next() override {
                const std::int64_t index = next_index++;
                return {.index = index < 7 ? index : index + 1};
            }

            std::int64_t next_index = 0;
        };

        struct Mixing final : Encoder {
            data::Sample encode(const data::SampleRef& ref) override {
                data::Sample sample;
                sample.ref = ref;
                sample.ref.index ^= ref.index == 6 ? 1 : 0;
                return sample;
            }
        };

        for (const bool mixing : {false, true}) {
            FirstError first_error;
            Skipping skipping;
            FakeSource straight(40, {});
            FakeEncoder good([](std::int64_t) { return true; }, 0, 1, {});
            Mixing mixes;
            FakePacker packer(4, 1, 1, {});
            FakeSlots slots(2);
            FakeReplica replica(slots, first_error, 0, 1, {});
            FakeTarget target(replica);
            SampleSource& source = mixing ? static_cast<SampleSource&>(straight) : skipping;
            Encoder& encoder = mixing ? static_cast<Encoder&>(mixes) : good;
            Pipeline pipeline({.window = 4}, source, encoder, packer, target, first_error);
            pipeline.start();
            const std::string error = what_of([&] {
                while (std::optional<RowLease> lease = pipeline.next()) {
                    slots.let_go(lease->slot());
                }
            });
            CHECK(error.find(mixing ? "answered sample 6 with sample 7"
                                    : "gave sample 8, expected 7") != std::string::npos);
        }
    }
}

}  // namespace dflash::pipeline
