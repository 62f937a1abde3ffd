// SPDX-License-Identifier: Apache-2.0
#include "hook_process.hpp"

#include <dflash/core/log.hpp>
#include <dflash/report/checkpoint_hook.hpp>
#include <dflash/report/metrics_hook.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>
#include <unistd.h>
#include <vector>

namespace dflash::report {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// A folder for one test, lines of the log meanwhile, and SIGPIPE as the program has it.
class Scene {
  public:
    Scene() {
        static int count = 0;
        folder_ = fs::temp_directory_path() /
                  fmt::format("dflash hooks-{}-{}", ::getpid(), count++);  // with a space
        fs::create_directories(folder_);
        ::signal(SIGPIPE, SIG_IGN);
        former_ = set_log_sink([this](LogLevel level, std::string_view line) {
            const std::lock_guard lock(mutex_);
            log_.push_back((level == LogLevel::Warning ? "warning: " : "") + std::string(line));
        });
    }

    ~Scene() {
        set_log_sink(std::move(former_));
        fs::remove_all(folder_);
    }

    Scene(const Scene&) = delete;
    Scene& operator=(const Scene&) = delete;

    std::string path(const std::string& name) const { return (folder_ / name).string(); }

    /// The same for a shell.
    std::string word(const std::string& name) const { return "'" + path(name) + "'"; }

    std::string text(const std::string& name) const {
        std::ifstream file(path(name));
        std::ostringstream text;
        text << file.rdbuf();
        return text.str();
    }

    bool logged(const std::string& text) const {
        const std::lock_guard lock(mutex_);
        return std::any_of(log_.begin(), log_.end(), [&](const std::string& line) {
            return line.find(text) != std::string::npos;
        });
    }

    std::string log() const {
        const std::lock_guard lock(mutex_);
        std::string all;
        for (const std::string& line : log_) {
            all += line + "\n";
        }
        return all;
    }

  private:
    fs::path folder_;
    LogSink former_;
    mutable std::mutex mutex_;
    std::vector<std::string> log_;
};

template <class Condition>
bool soon(Condition condition) {
    const auto until = Clock::now() + 10s;
    while (!condition() && Clock::now() < until) {
        std::this_thread::sleep_for(2ms);
    }
    return condition();
}

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

TEST_SUITE("report.metrics_hook") {
    TEST_CASE("every line arrives in order, and the command sees the end of its input") {
        const Scene scene;
        {
            MetricsHook hook("cat > " + scene.word("got") + "; echo end >> " + scene.word("got"),
                             scene.path("log"));
            for (int i = 0; i < 1000; ++i) {
                hook.write(fmt::format("{{\"step\":{}}}", i));
            }
            hook.finish(10);
            CHECK(hook.counts().written == 1000);
            CHECK(hook.counts().dropped == 0);
            hook.write("too late");
            CHECK(hook.counts().dropped == 1);
        }
        std::string expected;
        for (int i = 0; i < 1000; ++i) {
            expected += fmt::format("{{\"step\":{}}}\n", i);
        }
        CHECK(scene.text("got") == expected + "end\n");
        CHECK(scene.log().empty());
    }

    TEST_CASE("a command that reads nothing never stalls, and what does not fit is counted") {
        const Scene scene;
        const auto begin = Clock::now();
        MetricsHook hook("exec sleep 100", scene.path("log"), {.max_queued_bytes = 10000});
        const std::string line(999, 'x');
        for (int i = 0; i < 1000; ++i) {
            hook.write(line);
        }
        CHECK(seconds_since(begin) < 1);
        // A pipe holds 64 KiB, the queue 10 kB.
        CHECK(hook.counts().dropped >= 1000 - 66 - 10 - 1);
        hook.finish(0.2);
        CHECK(seconds_since(begin) < 5);
        CHECK(hook.counts().written + hook.counts().dropped == 1000);
        CHECK(scene.logged("does not end after its input did"));
        CHECK(scene.logged(fmt::format(
            "got {} lines; {} were dropped", hook.counts().written, hook.counts().dropped)));
    }

    TEST_CASE("dropped lines are told while the run goes on") {
        const Scene scene;
        MetricsHook hook(
            "exec sleep 100", scene.path("log"), {.max_queued_bytes = 100, .tell_every_s = 0.05});
        for (int i = 0; i < 100; ++i) {
            hook.write(std::string(2000, 'x'));
        }
        CHECK(soon([&] { return scene.logged("100 lines dropped, 100 in all"); }));
    }

    TEST_CASE("a command that fails is started again and misses nothing that was queued") {
        const Scene scene;
        // Takes one line, and fails the first two times.
        const std::string command =
            "echo run >> " + scene.word("runs") + "; if [ $(wc -l < " + scene.word("runs") +
            ") -lt 3 ]; then echo broken >&2; exit 3; fi; exec cat > " + scene.word("got");
        MetricsHook hook(command, scene.path("log"), {.first_delay_s = 0.02});
        for (int i = 0; i < 10; ++i) {
            hook.write(fmt::format("line {}", i));
            std::this_thread::sleep_for(20ms);
        }
        CHECK(soon([&] { return scene.text("runs") == "run\nrun\nrun\n"; }));
        CHECK(soon([&] { return hook.counts().written == 10; }));
        hook.finish(10);
        CHECK(scene.logged("warning: hooks.metrics ended (exit code 3) and is started again"));
        CHECK(scene.logged(": broken"));  // the last line of its output
        // What the failed ones had in their pipes is theirs; the last line was sent late enough.
        CHECK(scene.text("got").find("line 9\n") != std::string::npos);
        CHECK(hook.counts().dropped == 0);
    }

    TEST_CASE("a command that always fails, wants no more or does not exist is given up") {
        struct Ending {
            const char* command;
            const char* how;
        };

        for (const Ending& ending : {Ending{"exit 3", "exit code 3, 3 times in a row"},
                                     Ending{"kill -9 $$", "signal 9, 3 times in a row"},
                                     Ending{"head -n 1 > /dev/null", "exit code 0"},
                                     Ending{"no-such-command-anywhere", "exit code 127"}}) {
            CAPTURE(ending.command);
            const Scene scene;
            MetricsHook hook(
                ending.command, scene.path("log"), {.first_delay_s = 0.01, .most_failures = 3});
            hook.write("a line");
            CHECK(soon([&] {
                return scene.logged(fmt::format(
                    "warning: hooks.metrics ended ({}) and gets no more lines", ending.how));
            }));
            const MetricsHook::Counts before = hook.counts();
            hook.write("another");
            CHECK(hook.counts().dropped == before.dropped + 1);
            hook.finish(1);
            CHECK(scene.logged("were dropped"));
        }
    }

    TEST_CASE("Ctrl-C goes to a whole group of processes, which a hook is not part of") {
        const Scene scene;
        HookProcess process(
            "trap '' HUP; exec sleep 100", HookProcess::Input::Nothing, scene.path("log"));
        CHECK(::getpgid(process.pid()) == process.pid());
        CHECK(::getpgid(process.pid()) != ::getpgrp());
        process.send(SIGTERM);
        CHECK(process.wait(10) == 128 + SIGTERM);
    }

    TEST_CASE("a hook inherits no file of ours and no ignored signal") {
        const Scene scene;
        const int leaked = ::dup(0);  // without O_CLOEXEC
        REQUIRE(leaked >= 0);
        HookProcess process("ls /proc/self/fd | wc -l; grep SigIgn /proc/self/status",
                            HookProcess::Input::Pipe,
                            scene.path("log"));
        CHECK(process.wait(10) == 0);
        ::close(leaked);
        std::istringstream output(scene.text("log"));
        int files = 0;
        std::string name;
        std::uint64_t ignored = 1;
        output >> files >> name >> std::hex >> ignored;
        CHECK(files == 4);  // the three standard ones, and the folder that ls reads
        CHECK((ignored >> (SIGPIPE - 1) & 1) == 0);
    }
}

TEST_SUITE("report.checkpoint_hook") {
    TEST_CASE("the command runs once for each save, in order and one at a time") {
        const Scene scene;
        const std::string log = scene.word("calls");
        CheckpointHook hook("echo begin {dir} >> " + log + "; sleep 0.05; echo end >> " + log,
                            scene.path("log"));
        for (int step : {1, 2, 3}) {
            const std::string folder = scene.path(fmt::format("it's step-{}", step));
            fs::create_directories(folder);
            const auto begin = Clock::now();
            hook.saved(step, folder);
            CHECK(seconds_since(begin) < 0.04);
        }
        hook.finish(10);
        std::string expected;
        for (int step : {1, 2, 3}) {
            expected +=
                fmt::format("begin {}\nend\n", scene.path(fmt::format("it's step-{}", step)));
        }
        CHECK(scene.text("calls") == expected);
        CHECK(scene.logged("hooks.checkpoint is done for step 3"));
        CHECK(scene.logged("waiting for hooks.checkpoint"));
    }

    TEST_CASE("a failure and a folder that is gone are warnings with what to look at") {
        const Scene scene;
        fs::create_directories(scene.path("step-1"));
        CheckpointHook hook("echo no such bucket; exit 4", scene.path("log"));
        hook.saved(1, scene.path("step-1"));
        hook.saved(2, scene.path("step-2"));
        hook.finish(10);
        CHECK(
            scene.logged("warning: hooks.checkpoint failed for step 1 (exit code 4); its output "
                         "is in " +
                         scene.path("log") + ": no such bucket"));
        CHECK(scene.logged("was removed before its turn came"));
    }

    TEST_CASE("the wait at the end has a limit, and what was not done is told") {
        const Scene scene;
        fs::create_directories(scene.path("step-1"));
        const auto begin = Clock::now();
        CheckpointHook hook("exec sleep 60", scene.path("log"));
        hook.saved(1, scene.path("step-1"));
        hook.saved(2, scene.path("step-1"));
        CHECK(soon([&] { return fs::exists(scene.path("log")); }));
        hook.finish(0.2);
        CHECK(seconds_since(begin) < 5);
        CHECK(scene.logged("for step 1 still runs as process "));
        CHECK(scene.logged("was not run for step 2; by hand: exec sleep 60"));
        // Left alone, but not by this test.
        const std::string log = scene.log();
        const std::size_t at = log.find("as process ") + 11;
        ::kill(-std::stoi(log.substr(at)), SIGKILL);
    }

    TEST_CASE("the folder is one word for the shell, whatever it is called") {
        CHECK(CheckpointHook::command_for("up {dir} s3://b/{dir}", "/a/b") ==
              "up /a/b s3://b//a/b");
        CHECK(CheckpointHook::command_for("up {dir}", "/a b/it's; rm x") ==
              "up '/a b/it'\\''s; rm x'");
        CHECK(CheckpointHook::command_for("up", "/a") == "up");
    }
}

}  // namespace dflash::report
