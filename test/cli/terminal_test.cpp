// SPDX-License-Identifier: Apache-2.0
// Signals and terminals: the promised exit codes and files, within seconds.
#include "process.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>

namespace dflash::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kSeconds = 30;  // far more than a step; the machine may be busy

bool saved(const std::string& run) {
    return fs::exists(run + "/latest/state/state.json");
}

}  // namespace

TEST_SUITE("process.terminal") {
    TEST_CASE("Ctrl-C in a terminal finishes the step, saves and exits with 130") {
        const std::string run = fresh_folder("ctrl-c");
        Process process(tiny_arguments(run, 100000, {"--set", "train.epochs=100000"}),
                        /*in_terminal=*/true);
        REQUIRE(process.wait_for("step      2", kSeconds));
        process.type(3);
        CHECK(process.wait(kSeconds) == 130);
        CHECK(saved(run));
        fs::remove_all(run);
    }

    TEST_CASE("SIGTERM and a terminal that is closed exit with 143 after saving") {
        for (const bool hang_up : {false, true}) {
            CAPTURE(hang_up);
            const std::string run = fresh_folder("term");
            Process process(tiny_arguments(run, 100000, {"--set", "train.epochs=100000"}),
                            /*in_terminal=*/true);
            REQUIRE(process.wait_for("step      2", kSeconds));
            if (hang_up) {
                process.close_terminal();
            } else {
                process.send(SIGTERM);
            }
            CHECK(process.wait(kSeconds) == 143);
            CHECK(saved(run));
            fs::remove_all(run);
        }
    }

    TEST_CASE("a second Ctrl-C stops at once, without saving") {
        const std::string run = fresh_folder("twice");
        Process process(tiny_arguments(run, 100000, {"--set", "train.epochs=100000"}),
                        /*in_terminal=*/true);
        REQUIRE(process.wait_for("step      2", kSeconds));
        process.send(SIGINT);
        process.send(SIGTERM);
        // Which of two pending signals is handled first is the system's choice; the other one ends
        // the process.
        const int code = process.wait(kSeconds);
        CHECK((code == 130 || code == 143));
        CHECK_FALSE(saved(run));
        fs::remove_all(run);
    }

    TEST_CASE("SIGUSR1 saves and the run goes on") {
        const std::string run = fresh_folder("usr1");
        Process process(tiny_arguments(run, 100000, {"--set", "train.epochs=100000"}),
                        /*in_terminal=*/false);
        REQUIRE(process.wait_for("step      2", kSeconds));
        process.send(SIGUSR1);
        CHECK(process.wait_for("saved step", kSeconds));
        CHECK(saved(run));
        process.send(SIGTERM);
        CHECK(process.wait(kSeconds) == 143);
        fs::remove_all(run);
    }

    TEST_CASE("a reader of the output that goes away does not end the run") {
        const std::string run = fresh_folder("head");
        Process process(tiny_arguments(run, 40), /*in_terminal=*/false);
        REQUIRE(process.wait_for("step      2", kSeconds));
        process.close_terminal();
        CHECK(process.wait(kSeconds) == 0);
        CHECK(saved(run));
        fs::remove_all(run);
    }
}

}  // namespace dflash::cli
