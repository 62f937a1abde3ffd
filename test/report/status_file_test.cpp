// SPDX-License-Identifier: Apache-2.0
#include "../io/expect_error.hpp"
#include "../io/temp_folder.hpp"
#include "status_example.hpp"

#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/report/status_file.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace dflash::report {
namespace {

namespace fs = std::filesystem;
using dflash::test::TempFolder;
using Lines = std::vector<std::string>;
using test::example_status;
using test::kNow;

/// A status that this process could have written.
RunStatus own_status() {
    RunStatus status = example_status(1, 1);
    status.host = host_name();
    status.pid = ::getpid();
    status.process_start_ticks = process_start_ticks(::getpid()).value();
    return status;
}

bool any(const Lines& lines, const std::string& part) {
    return std::ranges::any_of(
        lines, [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

/// A run folder with a status, written at that time.
void make_run(const std::string& folder, const RunStatus& status, int seconds_ago) {
    fs::create_directories(folder);
    {
        StatusFile file(folder + "/status.json");
        file.write(status);
    }
    fs::last_write_time(folder + "/status.json",
                        fs::file_time_type::clock::now() - std::chrono::seconds(seconds_ago));
}

}  // namespace

TEST_SUITE("report.status_file") {
    TEST_CASE("the last status written is in the file, whole, at any time") {
        const TempFolder folder;
        StatusFile file(folder / "status.json");
        RunStatus status = example_status(1, 1);
        bool seen = false;
        for (int step = 1; step <= 200; ++step) {
            status.step->step = step;
            file.write(status);
            std::this_thread::sleep_for(std::chrono::milliseconds(step < 100 ? 1 : 0));
            if (fs::exists(folder / "status.json")) {
                const std::int64_t read = read_status(folder.path()).step->step;
                CHECK(read >= 1);
                CHECK(read <= step);
                seen = true;
            }
        }
        file.finish();
        CHECK(seen);
        CHECK(read_status(folder.path()).step->step == 200);
        CHECK(dflash::test::names_in(folder.path()) == Lines{"status.json"});
        status.step->step = 201;
        file.write(status);
        CHECK(read_status(folder.path()).step->step == 200);
    }

    TEST_CASE("a folder that cannot be written is one warning, and no end") {
        const TempFolder folder;
        Lines warnings;
        const LogSink former = set_log_sink([&](LogLevel level, std::string_view line) {
            if (level == LogLevel::Warning) {
                warnings.emplace_back(line);
            }
        });
        {
            StatusFile file(folder / "none/status.json");
            for (int i = 0; i < 20; ++i) {
                file.write(example_status(1, 1));
                std::this_thread::sleep_for(std::chrono::milliseconds(2));
            }
        }
        set_log_sink(former);
        REQUIRE(warnings.size() == 1);
        CHECK(warnings[0].find("none/") != std::string::npos);
    }

    TEST_CASE("a process is known by its start, not by its number alone") {
        RunStatus status = own_status();
        CHECK(writer_of(status) == Writer::Running);
        ++status.process_start_ticks;
        CHECK(writer_of(status) == Writer::Gone);
        status.host += "-other";
        CHECK(writer_of(status) == Writer::Unknown);
        CHECK_FALSE(process_start_ticks(0x7FFFFFFF));
    }

    TEST_CASE("a process that ended is gone, even before its parent has asked for it") {
        const ::pid_t child = ::fork();
        if (child == 0) {
            ::pause();
            ::_exit(0);
        }
        RunStatus status = own_status();
        status.pid = child;
        status.process_start_ticks = process_start_ticks(child).value();
        CHECK(writer_of(status) == Writer::Running);
        ::kill(child, SIGKILL);
        ::siginfo_t info{};
        REQUIRE(::waitid(P_PID, static_cast<::id_t>(child), &info, WEXITED | WNOWAIT) == 0);
        CHECK(writer_of(status) == Writer::Gone);
        ::waitpid(child, nullptr, 0);
        CHECK(writer_of(status) == Writer::Gone);
    }

    TEST_CASE("the newest run is the one written last; other folders do not count") {
        const TempFolder folder;
        CHECK_FALSE(newest_run(folder / "none"));
        CHECK_FALSE(newest_run(folder.path()));
        fs::create_directories(folder / "d-no-run");
        make_run(folder / "a", example_status(1, 1), 100);
        make_run(folder / "b", example_status(1, 1), 50);
        make_run(folder / "c", example_status(1, 1), 200);
        CHECK(newest_run(folder.path()) == folder / "b");
    }

    TEST_CASE("a folder without a status, and a file that is none, are errors with a place") {
        const TempFolder folder;
        dflash::test::expect_error(ErrorKind::Config, {folder.path(), "dflash status RUN"}, [&] {
            read_status(folder.path());
        });
        dflash::test::write_text(folder / "status.json", "{\"schema\": ");
        dflash::test::expect_error(
            ErrorKind::Config, {"status.json"}, [&] { read_status(folder.path()); });
    }

    TEST_CASE("of a live run the block is printed, with clocks that go on") {
        const Lines lines = status_lines(own_status(), "runs/a", Writer::Running, 79, kNow);
        CHECK(lines[0] == "run       runs/a");
        CHECK(lines[1] ==
              fmt::format("written   3.0 s ago by process {} on {}", ::getpid(), host_name()));
        CHECK(lines[2].starts_with("training  step 1,234"));
        CHECK(any(lines, "cuda:1  drafter"));
        CHECK_FALSE(any(lines, "resume"));
    }

    TEST_CASE("of a run whose process is gone the resume command is printed") {
        const TempFolder folder;
        RunStatus status = own_status();
        const Lines unsaved = status_lines(status, folder.path(), Writer::Gone, 79, kNow + 5000);
        CHECK(any(unsaved,
                  "the process that wrote this is not running: it ended without a word while "
                  "training"));
        CHECK(unsaved.back() == "continue  nothing was saved yet: start it again");
        CHECK(any(unsaved, "up 3:05:09"));  // the clock stands

        for (const char* kept : {"answers.jsonl", "latest"}) {
            fs::create_directories(folder / kept);
            CHECK(status_lines(status, folder.path(), Writer::Gone, 79, kNow).back() ==
                  "continue  dflash --resume " + shell_word(folder.path()));
            fs::remove(folder / kept);
        }
    }

    TEST_CASE("a run on another machine is told apart from one that should have written") {
        RunStatus status = example_status(1, 1);
        CHECK(status_lines(status, "r", Writer::Unknown, 79, kNow).back() == "it runs on node7");
        CHECK(any(status_lines(status, "r", Writer::Unknown, 79, kNow + 600),
                  "it runs on node7 and should have written by now"));
    }

    TEST_CASE("of a run that is over the exit code is printed, and of a failed one what to do") {
        RunStatus status = own_status();
        status.state = RunState::Done;
        status.exit_code = 0;
        CHECK(any(status_lines(status, "r", Writer::Gone, 79, kNow), "ago with exit code 0"));
        CHECK_FALSE(any(status_lines(status, "r", Writer::Gone, 79, kNow), "--resume"));

        status.state = RunState::Failed;
        status.exit_code = 6;
        status.failure = {ErrorKind::Storage,
                          {.what = "the disk is full", .where = "here", .cause = "", .hint = "do"}};
        const Lines failed = status_lines(status, "r", Writer::Gone, 79, kNow);
        CHECK(any(failed, "ago with exit code 6"));
        CHECK(any(failed, "what        the disk is full"));
        CHECK(any(failed, "what to do  do"));
        CHECK(any(failed, "log         r/console.log"));
    }
}

}  // namespace dflash::report
