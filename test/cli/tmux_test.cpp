// SPDX-License-Identifier: Apache-2.0
// What people see: the program in a real tmux, on cpu:4 with configs/tiny-cpu.toml. A step there
// takes a tenth of a second or so, and the block is drawn once a second.
#include "tmux.hpp"

#include "process.hpp"

#include <dflash/report/status_file.hpp>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <thread>
#include <unistd.h>

namespace dflash::cli {
namespace {

namespace fs = std::filesystem;
using Rows = std::vector<std::string>;

constexpr double kSeconds = 60;  // the machine may be busy

/// Of a run that goes on until it is stopped.
std::vector<std::string> endless(const std::string& run,
                                 const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"--config",
                                          "configs/tiny-cpu.toml",
                                          "--gpus",
                                          "cpu:4",
                                          "--output",
                                          run,
                                          "--set",
                                          "train.max_steps=1000000",
                                          "--set",
                                          "train.epochs=1000000"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
}

/// Ends what a failing test leaves behind, and removes the run.
class Run {
  public:
    explicit Run(const std::string& name) : folder_(fresh_folder(name)) {}

    ~Run() {
        std::error_code ignored;
        if (fs::exists(folder_ + "/status.json", ignored)) {
            const report::RunStatus last = status();
            if (report::writer_of(last) == report::Writer::Running) {
                ::kill(static_cast<::pid_t>(last.pid), SIGKILL);
                wait_until_gone();
            }
        }
        fs::remove_all(folder_, ignored);
    }

    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    const std::string& folder() const { return folder_; }

    report::RunStatus status() const { return report::read_status(folder_); }

    std::int64_t step() const {
        const report::RunStatus now = status();
        return now.step ? now.step->step : 0;
    }

    bool saved() const { return fs::exists(folder_ + "/latest/state/state.json"); }

    bool wait_until(const std::function<bool()>& condition) const {
        for (int i = 0; i < 20 * static_cast<int>(kSeconds); ++i) {
            if (fs::exists(folder_ + "/status.json") && condition()) {
                return true;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        return condition();
    }

    bool wait_until_gone() const {
        return wait_until([this] { return report::writer_of(status()) == report::Writer::Gone; });
    }

  private:
    std::string folder_;
};

/// One block, as wide as the pane allows, and the run is in its steps.
bool shows_one_block(const Rows& rows) {
    return count_starting(rows, "training  step") == 1 && count_starting(rows, "cpu:0  ") == 1 &&
           count_starting(rows, "cpu:3  ") == 1;
}

bool narrower_than(const Rows& rows, std::size_t columns) {
    return std::ranges::all_of(rows, [&](const std::string& row) { return row.size() <= columns; });
}

}  // namespace

TEST_SUITE("tmux" * doctest::skip(!tmux_there())) {
    TEST_CASE("a running program shows its first lines, and one block at the end") {
        const Run run("tmux-runs");
        const Tmux tmux(shell_line(endless(run.folder())), 80, 24);
        Rows rows = tmux.wait_for(shows_one_block, kSeconds);
        CAPTURE(joined(rows));
        REQUIRE(shows_one_block(rows));
        for (int i = 0; i < 3; ++i) {  // and stays one
            std::this_thread::sleep_for(std::chrono::milliseconds(1100));
            rows = tmux.capture();
            CAPTURE(joined(rows));
            CHECK(shows_one_block(rows));
            CHECK(narrower_than(rows, 80));
            CHECK(rows.back().starts_with("cpu:3  "));
            CHECK(count_with(rows, "tok/s") >= 1);
            CHECK(count_with(rows, "loss ") >= 1);
        }
        const Rows all = tmux.history();
        CAPTURE(joined(all));
        CHECK(count_starting(all, "target    T1") == 1);
        CHECK(count_starting(all, "run       ") == 1);
        CHECK(count_starting(all, "held out at step 0") == 1);
        CHECK(count_starting(all, "step      1 ") == 1);
        CHECK(count_starting(all, "cpu:2  ") == 1);
    }

    TEST_CASE("after a detach and an attach the block is one, and the run went on") {
        const Run run("tmux-attach");
        const Tmux tmux(shell_line(endless(run.folder(), {"--set", "report.every=200ms"})), 80, 24);
        REQUIRE(shows_one_block(tmux.wait_for(shows_one_block, kSeconds)));
        std::int64_t step = 0;
        for (int i = 0; i < 2; ++i) {
            Process client = Process::of(tmux.attach_command(), /*in_terminal=*/true);
            CHECK(client.wait_for("cpu:3", kSeconds));
            tmux.command({"detach-client"});
            CHECK(client.wait(kSeconds) == 0);
            const std::int64_t before = step;
            CHECK(run.wait_until([&] { return (step = run.step()) > before; }));
            std::this_thread::sleep_for(std::chrono::milliseconds(1200));
            const Rows rows = tmux.wait_for(shows_one_block, kSeconds);
            CAPTURE(joined(rows));
            CHECK(shows_one_block(rows));
            CHECK(count_starting(tmux.history(), "cpu:3  ") == 1);
        }
    }

    TEST_CASE(
        "through a resize to 40x10 and back there is one block, and no printed line is lost") {
        const Run run("tmux-resize");
        const Tmux tmux(shell_line(endless(run.folder())), 80, 24);
        REQUIRE(shows_one_block(tmux.wait_for(shows_one_block, kSeconds)));

        tmux.resize(40, 10);
        std::this_thread::sleep_for(std::chrono::milliseconds(2500));
        Rows screen = tmux.capture();
        CAPTURE(joined(screen));
        CHECK(narrower_than(screen, 40));
        screen.erase(screen.begin(),
                     screen.end() - std::min<std::ptrdiff_t>(9, std::ssize(screen)));
        CHECK(count_starting(screen, "cpu:0  ") == 1);
        CHECK(count_starting(screen, "cpu:3  ") == 1);
        CHECK(screen.back().starts_with("cpu:3  "));

        tmux.resize(80, 24);
        std::this_thread::sleep_for(std::chrono::milliseconds(2500));
        const Rows rows = tmux.capture();
        CAPTURE(joined(rows));
        CHECK(shows_one_block(rows));
        const Rows all = tmux.history();
        CAPTURE(joined(all));
        CHECK(count_starting(all, "cpu:1  ") == 1);
        CHECK(count_starting(all, "cpu:3  ") == 1);
        CHECK(count_starting(all, "training  step") == 1);
        CHECK(count_starting(all, "target    T1") == 1);
        CHECK(count_starting(all, "held out at step 0") == 1);
        CHECK(count_starting(all, "step      1 ") == 1);
    }

    TEST_CASE("a pane that is killed saves and ends the run, with exit code 143") {
        const Run run("tmux-kill");
        const Tmux tmux(shell_line(endless(run.folder())), 80, 24);
        REQUIRE(shows_one_block(tmux.wait_for(shows_one_block, kSeconds)));
        tmux.kill();
        REQUIRE(run.wait_until_gone());
        CHECK(run.saved());
        CHECK(run.status().state == report::RunState::Stopped);
        CHECK(run.status().exit_code == 143);
    }

    TEST_CASE("under nohup, and where hang-ups are ignored, the run goes on without the pane") {
        for (const bool nohup : {true, false}) {
            CAPTURE(nohup);
            const Run run(nohup ? "tmux-nohup" : "tmux-ignored");
            const std::string line =
                shell_line(endless(run.folder(), {"--set", "report.every=200ms"}));
            const Tmux tmux(
                nohup ? "nohup " + line + " > " + run.folder() + ".out" : "trap '' HUP; " + line,
                80,
                24);
            REQUIRE(run.wait_until([&] { return run.step() > 2; }));
            tmux.kill();
            const std::int64_t step = run.step();
            CHECK(run.wait_until([&] { return run.step() > step + 5; }));
            CHECK(report::writer_of(run.status()) == report::Writer::Running);
            ::kill(static_cast<::pid_t>(run.status().pid), SIGTERM);
            REQUIRE(run.wait_until_gone());
            CHECK(run.saved());
            CHECK(run.status().exit_code == 143);
            fs::remove(run.folder() + ".out");
        }
    }

    TEST_CASE("after an error the last eight lines say what to do, and there is no block") {
        const Run run("tmux-error");
        // The gradient overflows in the second step at the latest.
        const Tmux tmux(shell_line(endless(run.folder(), {"--lr", "1e30"})), 80, 24);
        const Rows rows = tmux.wait_for(
            [](const Rows& now) { return count_with(now, "exit code 5") == 2; }, kSeconds);
        CAPTURE(joined(rows));
        REQUIRE(rows.size() > 9);
        CHECK(rows.back() == "exit code 5");
        const Rows all = tmux.history();
        CHECK(count_starting(all, "cpu:3  ") == 0);
        const Rows last(all.end() - 8, all.end() - 1);
        CAPTURE(joined(last));
        CHECK(last[0] == "The run failed.");
        CHECK(last[1].starts_with("kind        numeric (exit code 5)"));
        CHECK(last[2].starts_with("what        "));
        CHECK(last[3].starts_with("where       "));
        CHECK(last[4].starts_with("cause       "));
        CHECK(last[5].starts_with("what to do  "));
        CHECK(last[5].size() > 20);
        CHECK(last[6] == "log         " + run.folder() + "/console.log");
        CHECK(run.status().state == report::RunState::Failed);
        CHECK(run.status().exit_code == 5);
        REQUIRE(run.status().failure);
        CHECK_FALSE(run.status().failure->parts.hint.empty());
    }

    TEST_CASE("Ctrl-C takes the block away and leaves the summary") {
        const Run run("tmux-ctrl-c");
        const Tmux tmux(shell_line(endless(run.folder())), 80, 24);
        REQUIRE(shows_one_block(tmux.wait_for(shows_one_block, kSeconds)));
        tmux.type("C-c");
        const Rows rows = tmux.wait_for(
            [](const Rows& now) { return count_with(now, "exit code 130") == 1; }, kSeconds);
        CAPTURE(joined(rows));
        CHECK(rows.back() == "exit code 130");
        CHECK(count_starting(tmux.history(), "cpu:3  ") == 0);
        CHECK(count_with(tmux.history(), "dflash --resume") == 1);
        CHECK(run.saved());
    }

    TEST_CASE("Ctrl-Z and fg leave one block below what the shell wrote") {
        const Run run("tmux-ctrl-z");
        // A shell with job control, as people have.
        const Tmux tmux("PS1='$ ' bash --norc --noprofile -i", 80, 24);
        tmux.command({"send-keys", shell_line(endless(run.folder())), "Enter"});
        const auto one_block_at_the_end = [](const Rows& rows) {
            return !rows.empty() && rows.back().starts_with("cpu:3  ");
        };
        REQUIRE(one_block_at_the_end(tmux.wait_for(one_block_at_the_end, kSeconds)));
        tmux.type("C-z");
        tmux.wait_for([](const Rows& rows) { return count_with(rows, "Stopped") >= 1; }, kSeconds);
        tmux.command({"send-keys", "echo between", "Enter"});
        tmux.wait_for([](const Rows& rows) { return count_with(rows, "between") >= 2; }, kSeconds);
        tmux.command({"send-keys", "fg", "Enter"});
        Rows rows = tmux.wait_for(one_block_at_the_end, kSeconds);
        std::this_thread::sleep_for(std::chrono::milliseconds(2500));
        rows = tmux.history();
        CAPTURE(joined(rows));
        CHECK(one_block_at_the_end(rows));
        CHECK(count_starting(rows, "cpu:3  ") == 2);  // the one that was left, and the live one
        CHECK(std::ranges::count(rows, "between") == 1);
    }
}

TEST_SUITE("process.output") {
    TEST_CASE("a pipe gets only whole lines, without escape sequences, and the same as the log") {
        const Run run("pipe-tee");
        const std::string file = run.folder() + ".out";
        Process process = Process::of(
            {"sh", "-c", shell_line(tiny_arguments(run.folder(), 20)) + " | tee " + file},
            /*in_terminal=*/true);
        CHECK(process.wait(kSeconds) == 0);
        std::string text;
        {
            const std::unique_ptr<FILE, int (*)(FILE*)> out(std::fopen(file.c_str(), "r"),
                                                            &std::fclose);
            REQUIRE(out);
            for (int c = 0; (c = std::fgetc(out.get())) != EOF;) {
                text += static_cast<char>(c);
            }
        }
        CHECK(text.find('\033') == std::string::npos);
        CHECK(text.find("\ncpu:1  ") == std::string::npos);
        CHECK(text.find("step      1 ") != std::string::npos);
        CHECK(text.find("continue  dflash --resume") != std::string::npos);
        CHECK(run.status().state == report::RunState::Done);
        CHECK(run.status().exit_code == 0);
        fs::remove(file);
    }

    TEST_CASE("a reader that takes three lines, and no output at all, do not end a run") {
        for (const char* output : {"| head -3", "> /dev/null", ">&-", ">&- 2>&- <&-"}) {
            CAPTURE(output);
            const Run run("no-output");
            Process process = Process::of(
                {"sh", "-c", shell_line(tiny_arguments(run.folder(), 20)) + " " + output},
                /*in_terminal=*/false);
            CHECK(process.wait(kSeconds) == 0);
            // `head` may end long before the run does.
            CHECK(run.wait_until([&] { return run.status().state == report::RunState::Done; }));
            CHECK(run.saved());
            CHECK(run.status().step->step == 20);
        }
    }
}

TEST_SUITE("process.status") {
    TEST_CASE("dflash status shows a live run, says when its process is gone, and how to go on") {
        const Run run("status");
        const std::vector<std::string> ask = {"status", run.folder()};
        Process process(endless(run.folder(), {"--set", "report.every=100ms"}),
                        /*in_terminal=*/false);
        REQUIRE(run.wait_until([&] { return run.step() > 1; }));

        Process live(ask, /*in_terminal=*/false);
        CHECK(live.wait(kSeconds) == 0);
        CAPTURE(live.output());
        CHECK(live.output().starts_with("run       " + run.folder() + "\nwritten   "));
        CHECK(live.output().find("training  step ") != std::string::npos);
        CHECK(live.output().find("cpu:3  ") != std::string::npos);
        CHECK(live.output().find("not running") == std::string::npos);

        process.send(SIGUSR1);
        REQUIRE(run.wait_until([&] { return run.status().saved.has_value(); }));
        process.send(SIGKILL);
        process.wait(kSeconds);
        Process gone(ask, /*in_terminal=*/false);
        CHECK(gone.wait(kSeconds) == 0);
        CAPTURE(gone.output());
        CHECK(gone.output().find("the process that wrote this is not running") !=
              std::string::npos);
        CHECK(gone.output().ends_with("continue  dflash --resume " + run.folder() + "\n"));

        Process json({"status", "--json", run.folder()}, /*in_terminal=*/false);
        CHECK(json.wait(kSeconds) == 0);
        const io::Json object = io::Json::parse(json.output(), "output");
        CHECK(object.find("process")->as_string() == "gone");
        CHECK(object.find("state")->as_string() == "training");
        CHECK(object.find("devices")->items().size() == 4);
    }

    TEST_CASE("without a folder it is the newest run below ./runs; none is an error") {
        const std::string folder = fresh_folder("status-newest");
        fs::create_directories(folder);
        const std::string ask = "cd " + folder + " && " + shell_line({"status"});
        {
            Process none = Process::of({"sh", "-c", ask}, /*in_terminal=*/false);
            CHECK(none.wait(kSeconds) == 2);
            CHECK(none.output().find("no run was found") != std::string::npos);
        }
        for (const char* name : {"a", "b"}) {
            Process process(tiny_arguments(folder + "/runs/" + name, 2), /*in_terminal=*/false);
            CHECK(process.wait(kSeconds) == 0);
        }
        Process newest = Process::of({"sh", "-c", ask}, /*in_terminal=*/false);
        CHECK(newest.wait(kSeconds) == 0);
        CHECK(newest.output().starts_with("run       runs/b\nended     "));
        fs::remove_all(folder);
    }
}

}  // namespace dflash::cli
