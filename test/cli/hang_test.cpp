// SPDX-License-Identifier: Apache-2.0
// Every stage of the graph and every worker fails or hangs at every step of a short run: the right
// error, by name, within seconds, and never a hang.
#include "process.hpp"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace dflash::cli {
namespace {

namespace fs = std::filesystem;

/// The promise is 10 s from the fault to the end; the rest is start-up on a busy machine.
constexpr double kMostSeconds = 30;

/// One place where a run can break, with the numbers that it has in a short run.
struct Place {
    std::string what;
    std::string who;  ///< of the report of a hang
    std::int64_t first = 0;
    std::int64_t last = 0;
    std::vector<std::string> only_on = {""};  ///< workers; "": whoever comes first
    std::int64_t stride = 1;                  ///< between the numbers that are tried
};

constexpr int kDefaultSteps = 2;
constexpr int kRowsPerStep = 4;

/// Steps of the run. Where a longer one was asked for, each of its rows is a place of its own, else
/// one row of each step.
int num_steps() {
    const char* text = std::getenv("DFLASH_TEST_FAULT_STEPS");
    return text != nullptr ? std::atoi(text) : kDefaultSteps;
}

/// The stages of the graph, the loop, and what comes once in a while. On cpu:3 positions 0 and 1
/// hold targets, 1 and 2 drafters, so worker 1 is both.
std::vector<Place> places(int steps) {
    const std::int64_t rows = kRowsPerStep * steps;
    const std::int64_t stride = steps > kDefaultSteps ? 1 : kRowsPerStep + 1;
    const std::vector<std::string> drafters = {"cpu:1", "cpu:2"};
    return {
        {"prepare", "loop", -1, -1},
        {"start", "cpu:0 (target 0)", -1, -1, {"cpu:0", "cpu:1", "cpu:2"}},
        {"load the target", "cpu:", -1, -1, {"cpu:0", "cpu:1"}},
        {"build the drafter", "cpu:", -1, -1, drafters},
        {"join the drafters", "cpu:", -1, -1, drafters},
        {"set the weights", "cpu:", -1, -1, drafters},
        {"sample", "node samples", 0, steps},
        {"encode sample", "node encode", 0, steps},
        {"pack sample", "node pack", 0, steps},
        {"hand over row", "node target", 0, rows - 1, {""}, stride},
        {"deliver row", "node step", 0, rows - 1, {""}, stride},
        {"capture row", "cpu:", 0, rows - 1, {""}, stride},
        {"train row", "cpu:", 0, rows - 1, {""}, stride},
        {"finish step", "cpu:", 1, steps, drafters},
        {"result of step", "cpu:", 1, steps, drafters},
        {"report step", "loop", 1, steps},
        {"evaluate step", "loop", 0, 0},
        {"capture held-out row", "cpu:", 0, 0},
        {"predict held-out row", "cpu:", 0, 0},
        {"decode prompts", "cpu:", -1, -1, {"cpu:0", "cpu:2"}},
        {"copy the optimizer", "cpu:", -1, -1},
        // The others may be left out, while a save is still being written.
        {"save step", "loop", 1, steps, {""}, steps - 1},
        {"write step", "saver", 1, steps, {""}, steps - 1},
    };
}

std::vector<std::string> arguments(const std::string& run, int steps) {
    std::vector<std::string> all = tiny_arguments(run,
                                                  steps,
                                                  {"--gpus",
                                                   "cpu:3",
                                                   "--target-gpus",
                                                   "0,1",
                                                   "--draft-gpus",
                                                   "1,2",
                                                   "--set",
                                                   "watchdog.after=1s",
                                                   "--set",
                                                   "checkpoint.every=1ms"});
    return all;
}

std::string text_of(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

/// The last lines of the output, without line ends of a terminal.
std::vector<std::string> last_lines(std::string output, std::size_t count) {
    std::vector<std::string> lines;
    std::istringstream stream(output);
    for (std::string line; std::getline(stream, line);) {
        if (!line.empty() && line.back() == '\r') {
            line.pop_back();
        }
        lines.push_back(line);
    }
    if (lines.size() > count) {
        lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(count));
    }
    return lines;
}

/// Faults of every place, number and worker: "capture row 3 on cpu:1".
struct Case {
    std::string where;
    std::string who;
};

std::vector<Case> cases() {
    std::vector<Case> all;
    for (const Place& place : places(num_steps())) {
        for (const std::string& worker : place.only_on) {
            for (std::int64_t number = place.first; number <= place.last; number += place.stride) {
                const std::string who = worker.empty() ? place.who : worker + " ";
                const std::string on = worker.empty() ? "" : " on " + worker;
                const std::string count = number < 0 ? "" : fmt::format(" {}", number);
                all.push_back({place.what + count + on, who});
            }
        }
    }
    return all;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// A run with a fault in it, and how it is to end.
struct Broken {
    Case place;
    std::string fault;
    int code = 0;
    std::string folder = {};
};

/// Runs all, several at a time, since most of them only wait; `check` gets the last eight lines.
template <class Check>
void run_all(std::vector<Broken> runs, Check check) {
    constexpr std::size_t kAtATime = 4;
    double longest = 0;
    for (std::size_t first = 0; first < runs.size(); first += kAtATime) {
        const std::size_t end = std::min(first + kAtATime, runs.size());
        std::vector<std::unique_ptr<Process>> processes;
        const auto begin = std::chrono::steady_clock::now();
        for (std::size_t i = first; i < end; ++i) {
            runs[i].folder = fresh_folder(fmt::format("fault-{}", i));
            processes.push_back(
                std::make_unique<Process>(arguments(runs[i].folder, num_steps()),
                                          /*in_terminal=*/false,
                                          std::vector{"DFLASH_TEST_FAULTS=" + runs[i].fault}));
        }
        for (std::size_t i = first; i < end; ++i) {
            Process& process = *processes[i - first];
            const std::string fault = runs[i].fault;
            CAPTURE(fault);
            CHECK(process.wait(kMostSeconds) == runs[i].code);
            longest = std::max(longest, seconds_since(begin));
            const std::string output = process.output();
            CAPTURE(output);
            const std::vector<std::string> lines = last_lines(output, 8);
            REQUIRE(lines.size() == 8);
            CHECK(lines[1] == "The run failed.");
            check(runs[i], lines);
            fs::remove_all(runs[i].folder);
        }
    }
    MESSAGE(runs.size() << " runs, the longest took " << longest << " s, " << kAtATime
                        << " at a time");
}

}  // namespace

TEST_SUITE("process.faults") {
    TEST_CASE("whatever part fails, at whatever step, the run ends with that very error") {
        // The kinds in turn, so that each exit code is seen from many places.
        const std::vector<std::pair<std::string, int>> kinds = {
            {"data", 3}, {"device", 4}, {"numeric", 5}, {"internal", 70}};
        std::vector<Broken> runs;
        for (const Case& one : cases()) {
            // Any other error of a save is the disk's, which is tried again.
            const bool writing = one.where.starts_with("write");
            const auto& [kind, code] = writing ? kinds.back() : kinds[runs.size() % kinds.size()];
            runs.push_back({one, fmt::format("{} {}", kind, one.where), code});
        }
        run_all(runs, [](const Broken& run, const std::vector<std::string>& lines) {
            CHECK(lines[2].ends_with(fmt::format("(exit code {})", run.code)));
            CHECK(lines[3].starts_with("what        a fault for a test in "));
        });
    }

    TEST_CASE("whatever part hangs, at whatever step, the run ends with 70 and names it") {
        std::vector<Broken> runs;
        for (const Case& one : cases()) {
            runs.push_back({one, "hang " + one.where, 70});
        }
        run_all(runs, [](const Broken& run, const std::vector<std::string>& lines) {
            CHECK(lines[2] == "kind        internal (exit code 70)");
            CHECK(lines[3] == "what        the run hangs: nothing was finished for 1s");
            CHECK(lines[4].starts_with("where       " + run.place.who));
            const std::string what = run.place.where.substr(0, run.place.where.find(" on "));
            CHECK(lines[4].find(what) != std::string::npos);
            // The log has the same, and no core file lies around.
            if (fs::exists(run.folder + "/console.log")) {
                CHECK(text_of(run.folder + "/console.log").find(lines[4]) != std::string::npos);
            }
            CHECK_FALSE(fs::exists("core"));
        });
    }

    TEST_CASE("one part fails while another hangs: the failure is told, within seconds") {
        const std::string run = fresh_folder("both");
        const auto begin = std::chrono::steady_clock::now();
        Process process(arguments(run, 4),
                        /*in_terminal=*/false,
                        {"DFLASH_TEST_FAULTS=hang write step 1; data finish step 4 on cpu:2"});
        CHECK(process.wait(kMostSeconds) == 3);
        CHECK(seconds_since(begin) < 15);
        CAPTURE(process.output());
        CHECK(process.output().find("does not end by itself") != std::string::npos);
        CHECK(process.output().find("write step 1, for") != std::string::npos);
        CHECK(last_lines(process.output(), 8)[3] ==
              "what        a fault for a test in finish step 4");
        fs::remove_all(run);
    }

    TEST_CASE("a process that was stopped for longer than watchdog.after goes on") {
        const std::string run = fresh_folder("stopped");
        Process process(
            tiny_arguments(
                run, 100000, {"--set", "train.epochs=100000", "--set", "watchdog.after=1s"}),
            /*in_terminal=*/false);
        REQUIRE(process.wait_for("step      2", kMostSeconds));
        process.send(SIGSTOP);
        CHECK(process.wait(3) == -1);
        process.send(SIGCONT);
        CHECK(process.wait(2) == -1);
        process.send(SIGTERM);
        CHECK(process.wait(kMostSeconds) == 143);
        CHECK(process.output().find("hangs") == std::string::npos);
        fs::remove_all(run);
    }

    TEST_CASE("a terminal that takes nothing is no hang") {
        const std::string run = fresh_folder("full");
        // Enough lines to fill any pipe or terminal; nobody reads.
        Process process(tiny_arguments(run, 80, {"--set", "watchdog.after=1s"}),
                        /*in_terminal=*/true);
        const auto begin = std::chrono::steady_clock::now();
        while (!fs::exists(run + "/step-000080") && seconds_since(begin) < 60) {
            ::usleep(50000);
        }
        CHECK(fs::exists(run + "/step-000080"));
        CHECK(process.wait(kMostSeconds) == 0);
        fs::remove_all(run);
    }
}

}  // namespace dflash::cli
