// SPDX-License-Identifier: Apache-2.0
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/report/failure_report.hpp>
#include <dflash/train/status_board.hpp>

#include <atomic>
#include <chrono>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <thread>
#include <unistd.h>

namespace dflash::train {
namespace {

using namespace std::chrono_literals;
using report::RunState;

/// A console that nobody sees.
class Nowhere {
  public:
    ~Nowhere() { ::close(descriptor_); }

    int descriptor() const { return descriptor_; }

  private:
    int descriptor_ = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
};

struct Fixture {
    TemporaryFolder folder;
    Nowhere nowhere;
    report::Console console{nowhere.descriptor()};

    StatusBoard::Options options(double every_s = 0.01) const {
        return {.folder = folder.path(""),
                .version = "1.2.3",
                .every_s = every_s,
                .redraw_every = 2ms,
                .stop_requested = nullptr};
    }

    report::RunStatus read() const { return report::read_status(folder.path("")); }

    /// Waits until the file says so.
    bool soon(const std::function<bool(const report::RunStatus&)>& condition) const {
        for (int i = 0; i < 5000; ++i) {
            if (std::filesystem::exists(folder.path("status.json")) && condition(read())) {
                return true;
            }
            std::this_thread::sleep_for(1ms);
        }
        return false;
    }
};

report::StepStatus step_status(std::int64_t step) {
    report::StepStatus status;
    status.step = step;
    status.loss = 2.5;
    return status;
}

}  // namespace

TEST_SUITE("train.status_board") {
    TEST_CASE("the file says who writes, and what the run does at the moment") {
        Fixture f;
        StatusBoard board(f.console, f.options());
        CHECK(f.soon([](const auto& s) { return s.state == RunState::Starting; }));
        const report::RunStatus status = f.read();
        CHECK(status.version == "1.2.3");
        CHECK(status.every_s == 0.01);
        CHECK(report::writer_of(status) == report::Writer::Running);

        const auto loading = board.enter(RunState::Starting, "loading");
        CHECK(f.soon([](const auto& s) { return s.doing == "loading"; }));
        const auto training = board.enter(RunState::Training);
        CHECK(f.soon([](const auto& s) { return s.state == RunState::Training; }));
        {
            const auto evaluating = board.enter(RunState::Evaluating);
            const auto saving = board.beside("saving step 7");
            CHECK(f.soon([](const auto& s) {
                return s.state == RunState::Evaluating && s.background == "saving step 7";
            }));
        }
        CHECK(f.soon(
            [](const auto& s) { return s.state == RunState::Training && s.background.empty(); }));
    }

    TEST_CASE("activities of several threads may end in any order") {
        Fixture f;
        StatusBoard board(f.console, f.options());
        StatusBoard::Activity training = board.enter(RunState::Training);
        StatusBoard::Activity evaluating = board.enter(RunState::Evaluating);
        training.end();
        CHECK(board.status().state == RunState::Evaluating);
        evaluating.end();
        evaluating.end();
        CHECK(board.status().state == RunState::Starting);
    }

    TEST_CASE("steps, evaluations, saves and warnings are there") {
        Fixture f;
        f.console.install();
        StatusBoard board(f.console, f.options());
        const auto training = board.enter(RunState::Training);
        board.step(step_status(41));
        board.step(step_status(42));
        board.held_out(
            {.step = 40, .loss = 3, .acceptance_length = 2.5, .bigram_acceptance_length = 1.5});
        board.saved(40);
        log_warning("something");
        CHECK(f.soon([](const auto& s) {
            return s.step && s.step->step == 42 && s.step->at_s > 1.7e9 && s.held_out &&
                   s.held_out->acceptance_length == 2.5 && s.saved && s.saved->step == 40 &&
                   s.warnings == 1 && s.last_warning == "something";
        }));
    }

    TEST_CASE("devices are watched: who is busy, and who waits for whom") {
        Fixture f;
        StatusBoard board(f.console, f.options(/*every_s=*/0.05));
        const auto training = board.enter(RunState::Training);
        board.step(step_status(1));
        const auto start = std::chrono::steady_clock::now();
        // A target that is idle half of the time for want of slots, a drafter that never waits.
        const auto watched = board.watch(
            [start] {
                const double s =
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
                RunSample sample;
                sample.devices = {{.name = "cpu:0",
                                   .has_target = true,
                                   .busy_s = s / 2,
                                   .tasks = 1,
                                   .row_idle_s = s / 2},
                                  {.name = "cpu:1",
                                   .has_drafter = true,
                                   .busy_s = s,
                                   .tasks = 3,
                                   .row_idle_s = std::nullopt}};
                sample.pipeline.target_waited_s = s / 2;
                return sample;
            },
            {"", ""});
        CHECK(f.soon([](const auto& s) {
            return s.devices.size() == 2 && s.devices[0].waits_for == "slots" &&
                   s.devices[0].waited > 0.4 && s.devices[0].waited < 0.6 &&
                   s.devices[0].busy > 0.4 && s.devices[0].busy < 0.6 &&
                   s.devices[0].role == "target" && s.devices[1].role == "drafter" &&
                   s.devices[1].busy > 0.9 && s.devices[1].waits_for.empty() &&
                   s.devices[1].tasks == 3;
        }));
    }

    TEST_CASE("a target without rows waits for rows, a drafter without features for the target") {
        Fixture f;
        StatusBoard board(f.console, f.options(/*every_s=*/0.05));
        const auto training = board.enter(RunState::Training);
        board.step(step_status(1));
        const auto start = std::chrono::steady_clock::now();
        const auto watched = board.watch(
            [start] {
                const double s =
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
                RunSample sample;
                sample.devices = {
                    {.name = "cpu:0", .has_target = true, .row_idle_s = s},
                    {.name = "cpu:1", .has_drafter = true, .row_idle_s = std::nullopt},
                    {.name = "cpu:2", .has_target = true, .has_drafter = true, .row_idle_s = 0.0}};
                sample.pipeline.step_waited_s = s;
                return sample;
            },
            {"", "", ""});
        CHECK(f.soon([](const auto& s) {
            return s.devices.size() == 3 && s.devices[0].waits_for == "rows" &&
                   s.devices[1].waits_for == "target" && s.devices[2].waits_for == "target" &&
                   s.devices[2].role == "both";
        }));
    }

    TEST_CASE("nothing is asked of devices once they are no longer watched") {
        Fixture f;
        StatusBoard board(f.console, f.options());
        std::atomic<int> asked = 0;
        {
            const auto watched = board.watch(
                [&asked] {
                    ++asked;
                    return RunSample{};
                },
                {});
            while (asked < 3) {
                std::this_thread::sleep_for(1ms);
            }
        }
        const int last = asked;
        std::this_thread::sleep_for(20ms);
        CHECK(asked == last);
    }

    TEST_CASE("a stop that was asked for shows at once, while the step goes on") {
        Fixture f;
        std::atomic<bool> stop = false;
        StatusBoard::Options options = f.options();
        options.stop_requested = [&stop] { return stop.load(); };
        StatusBoard board(f.console, options);
        const auto training = board.enter(RunState::Training);
        CHECK(board.status().state == RunState::Training);
        stop = true;
        CHECK(f.soon([](const auto& s) { return s.state == RunState::Stopping; }));
    }

    TEST_CASE("the clock goes on while the run hangs") {
        Fixture f;
        StatusBoard board(f.console, f.options());
        const auto training = board.enter(RunState::Training);
        board.step(step_status(1));
        CHECK(f.soon([](const auto& s) { return s.step.has_value(); }));
        const double first = f.read().written_s;
        CHECK(f.soon([first](const auto& s) { return s.written_s > first + 0.05; }));
    }

    TEST_CASE(
        "a failure that is reported from elsewhere, while the run hangs, stands in the file") {
        Fixture f;
        StatusBoard board(f.console, f.options());
        const auto training = board.enter(RunState::Training);
        std::thread([&] {
            report::report_failure(
                std::make_exception_ptr(Error(
                    ErrorKind::Internal, {.what = "hangs", .where = {}, .cause = {}, .hint = {}})),
                f.console);
        }).join();
        CHECK(f.read().state == RunState::Failed);
        CHECK(f.read().exit_code == 70);
        CHECK(f.read().failure->parts.what == "hangs");
    }

    TEST_CASE("the end stands in the file: done, stopped or failed with the parts of the error") {
        Fixture f;
        {
            StatusBoard board(f.console, f.options());
            const auto training = board.enter(RunState::Training);
            board.finished(RunState::Done, 0);
            CHECK(f.read().state == RunState::Done);
            CHECK(f.read().exit_code == 0);
        }
        CHECK(f.read().state == RunState::Done);
        StatusBoard board(f.console, f.options());
        board.failed(std::make_exception_ptr(Error(
            ErrorKind::Numeric, {.what = "nan", .where = "here", .cause = "c", .hint = "h"})));
        const report::RunStatus status = f.read();
        CHECK(status.state == RunState::Failed);
        CHECK(status.exit_code == 5);
        REQUIRE(status.failure);
        CHECK(status.failure->parts.what == "nan");
        CHECK(status.failure->parts.hint == "h");
    }
}

}  // namespace dflash::train
