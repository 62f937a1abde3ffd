// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/report/console.hpp>
#include <dflash/train/fault_plan.hpp>
#include <dflash/train/watchdog.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace dflash::train {
namespace {

using namespace std::chrono_literals;

/// How a watchdog ended the process, had it not been told to do this instead.
struct End {
    std::mutex mutex;
    std::optional<std::string> error;
    std::vector<std::string> lines;

    WatchdogOptions options(double after_s, double after_error_s = 5) {
        return {.after_s = after_s,
                .after_error_s = after_error_s,
                .progress = [this] { return progress.load(); },
                .end_process =
                    [this](const std::exception_ptr& pointer, const std::vector<std::string>& all) {
                        const std::lock_guard lock(mutex);
                        try {
                            std::rethrow_exception(pointer);
                        } catch (const std::exception& caught) {
                            error = caught.what();
                        }
                        lines = all;
                    }};
    }

    bool within(std::chrono::milliseconds time) {
        const auto until = std::chrono::steady_clock::now() + time;
        while (std::chrono::steady_clock::now() < until) {
            {
                const std::lock_guard lock(mutex);
                if (error) {
                    return true;
                }
            }
            std::this_thread::sleep_for(2ms);
        }
        return false;
    }

    std::atomic<std::uint64_t> progress = 0;
};

bool contains(const std::vector<std::string>& lines, const std::string& text) {
    return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
        return line.find(text) != std::string::npos;
    });
}

/// A worker's board without a worker.
WatchedWorker fake_worker(const char* device,
                          const char* role,
                          std::optional<int> rank,
                          const char* doing,
                          std::int64_t number) {
    const auto board = std::make_shared<gpu::WorkerBoard>(device);
    board->activity.set(doing, number);
    return {.role = role, .rank = rank, .board = board};
}

}  // namespace

TEST_SUITE("train.watchdog") {
    TEST_CASE("time without progress is counted in ticks, so that a stopped process loses none") {
        StallClock clock(1);
        CHECK(clock.tick(5, 1) == 0);  // what was done before
        CHECK(clock.tick(5, 1) == 1);
        CHECK(clock.tick(5, 1.5) == 2.5);
        CHECK(clock.tick(5, 3600) == 4.5);  // stopped for an hour: two ticks at most
        CHECK(clock.tick(6, 1) == 0);
        CHECK(clock.tick(6, 0.5) == 0.5);
        clock.restart();
        CHECK(clock.stalled_s() == 0);
    }

    TEST_CASE("a run that gets on is left alone, and one that does not is ended by name") {
        Whereabouts whereabouts;
        whereabouts.add_worker(fake_worker("cpu:0", "target 0", {}, nullptr, 0));
        whereabouts.add_worker(fake_worker("cpu:1", "drafter 0", 0, "train row", 17));
        const Activity::Scope loop(whereabouts.loop(), "wait for step", 4, Activity::Kind::Waits);
        End end;
        Watchdog watchdog(whereabouts, end.options(0.3));
        for (int i = 0; i < 40; ++i) {
            std::this_thread::sleep_for(20ms);
            ++end.progress;
        }
        CHECK_FALSE(end.within(1ms));
        REQUIRE(end.within(5000ms));
        const std::lock_guard lock(end.mutex);
        CHECK(end.error->find("the run hangs: nothing was finished for 300ms") == 0);
        CHECK(end.error->find("cpu:1 (drafter 0): train row 17, for ") != std::string::npos);
        CHECK(end.error->find("the loop is in: wait for step 4") != std::string::npos);
        CHECK(contains(end.lines, "cpu:0 (target 0)"));
        CHECK(contains(end.lines, "wait for step 4"));
    }

    TEST_CASE("a drafter that waits in a collective is not the one to blame") {
        comm::CollectiveBoard collectives(3);
        collectives.enter(0, "all_reduce");
        collectives.enter(2, "all_reduce");
        Whereabouts whereabouts;
        whereabouts.set_collectives(
            std::shared_ptr<const comm::CollectiveBoard>(&collectives, [](auto*) {}));
        whereabouts.add_worker(fake_worker("cpu:0", "drafter 0", 0, "finish step", 2));
        whereabouts.add_worker(fake_worker("cpu:1", "drafter 1", 1, "train row", 5));
        whereabouts.add_worker(fake_worker("cpu:2", "drafter 2", 2, "finish step", 2));
        Picture picture = whereabouts.picture(0);
        REQUIRE(picture.suspects.size() == 1);
        CHECK(picture.suspects[0].find("cpu:1 (drafter 1): train row 5") == 0);
        CHECK(contains(picture.lines, "all_reduce 1: ranks 0, 2 wait for rank 1"));
        CHECK(contains(picture.lines, "finish step 2"));
        // All have come: then it is the collective that does not end.
        collectives.enter(1, "all_reduce");
        CHECK(whereabouts.picture(0).suspects.size() == 3);
        // What has just begun is not what the run waits for.
        CHECK(whereabouts.picture(60).suspects.empty());
    }

    TEST_CASE("a failed run that does not end by itself ends with its own error") {
        Whereabouts whereabouts;
        whereabouts.add_worker(fake_worker("cpu:1", "drafter 0", 0, "train row", 17));
        End end;
        Watchdog watchdog(whereabouts, end.options(0.4, 0.2));
        watchdog.run_failed(std::make_exception_ptr(Error(
            ErrorKind::Storage, {.what = "the first one", .where = {}, .cause = {}, .hint = {}})));
        watchdog.run_failed(std::make_exception_ptr(std::runtime_error("the second one")));
        REQUIRE(end.within(5000ms));
        const std::lock_guard lock(end.mutex);
        CHECK(end.error->find("the first one") == 0);
        CHECK(contains(end.lines, "does not end by itself"));
        CHECK(contains(end.lines, "cpu:1 (drafter 0): train row 17"));
    }

    TEST_CASE("the end comes and is told on standard error although the log's disk hangs") {
        const std::string folder =
            (std::filesystem::temp_directory_path() / fmt::format("dflash-dog-{}", ::getpid()))
                .string();
        std::filesystem::create_directories(folder);
        // A terminal that nobody reads takes a few kilobytes: what is written stops in the middle,
        // with the console's lock held.
        const int reader = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        REQUIRE(reader >= 0);
        REQUIRE(::grantpt(reader) == 0);
        REQUIRE(::unlockpt(reader) == 0);
        const std::string log = ::ptsname(reader);
        const pid_t child = ::fork();
        if (child == 0) {
            const int out = ::open((folder + "/stderr").c_str(), O_WRONLY | O_CREAT, 0600);
            ::dup2(out, STDOUT_FILENO);
            ::dup2(out, STDERR_FILENO);
            report::console().attach(log);
            std::thread([] {
                for (;;) {
                    report::console().print(std::string(10000, 'x'));
                }
            }).detach();
            std::this_thread::sleep_for(300ms);
            end_process_now(std::make_exception_ptr(Error(
                                ErrorKind::Internal,
                                {.what = "it hangs", .where = "there", .cause = {}, .hint = {}})),
                            {"who waits for whom"});
        }
        REQUIRE(child > 0);
        int status = 0;
        const auto until = std::chrono::steady_clock::now() + 20s;
        while (::waitpid(child, &status, WNOHANG) == 0 &&
               std::chrono::steady_clock::now() < until) {
            std::this_thread::sleep_for(20ms);
        }
        ::kill(child, SIGKILL);
        ::close(reader);
        CHECK(WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == 70);
        std::ifstream file(folder + "/stderr");
        std::ostringstream text;
        text << file.rdbuf();
        CHECK(text.str().find("who waits for whom\n") != std::string::npos);
        CHECK(text.str().find("what        it hangs\nwhere       there\n") != std::string::npos);
        std::filesystem::remove_all(folder);
    }

    TEST_CASE("the picture is complete but for what is just being added") {
        Whereabouts whereabouts;
        Activity& saver = whereabouts.add_thread("saver");
        saver.set("write step", 12);
        CHECK(contains(whereabouts.picture(0).lines, "write step 12"));
        CHECK(whereabouts.picture(0).suspects.size() == 1);
        CHECK(contains(whereabouts.picture(0).lines, "loop"));
    }
}

TEST_SUITE("train.fault_plan") {
    TEST_CASE("faults are read with place, number and thread") {
        const std::vector<Fault> faults =
            parse_faults("hang capture row 3; storage save step 2 on loop;data prepare");
        REQUIRE(faults.size() == 3);
        CHECK_FALSE(faults[0].kind);
        CHECK(faults[0].what == "capture row");
        CHECK(faults[0].number == 3);
        CHECK_FALSE(faults[0].who);
        CHECK(faults[1].kind == ErrorKind::Storage);
        CHECK(faults[1].what == "save step");
        CHECK(faults[1].who == "loop");
        CHECK(faults[2].what == "prepare");
        CHECK_FALSE(faults[2].number);
        CHECK(parse_faults("").empty());
        CHECK_THROWS_AS(parse_faults("explode row 3"), Error);
        CHECK_THROWS_AS(parse_faults("hang"), Error);
    }

    TEST_CASE("a fault hits its place, number and thread only, and nothing once it is taken back") {
        Activity loop("loop");
        Activity other("cpu:0");
        set_faults(parse_faults("data save step 2 on loop"));
        CHECK_NOTHROW(Activity::Scope(loop, "save step", 1));
        CHECK_NOTHROW(Activity::Scope(other, "save step", 2));
        CHECK_NOTHROW(Activity::Scope(loop, "report step", 2));
        CHECK_THROWS_AS(Activity::Scope(loop, "save step", 2), Error);
        set_faults({});
        CHECK_NOTHROW(Activity::Scope(loop, "save step", 2));
    }
}

}  // namespace dflash::train
