// SPDX-License-Identifier: Apache-2.0
// The user's commands beside a whole run.
#include "process.hpp"

#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace dflash::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kSeconds = 60;

std::string text_of(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

std::int64_t count(const std::string& text, const std::string& part) {
    std::int64_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
        ++found;
    }
    return found;
}

}  // namespace

TEST_SUITE("process.hooks") {
    TEST_CASE("the metrics hook gets every line, and the checkpoint hook every save") {
        const std::string run = fresh_folder("hooks");
        const std::string got = fresh_folder("hooks-got");
        fs::create_directories(got);
        Process process(
            tiny_arguments(
                run,
                12,
                {"--set",
                 "hooks.metrics=cat > " + got + "/metrics; echo ended >> " + got + "/metrics",
                 "--set",
                 "hooks.checkpoint=ls {dir} >> " + got + "/saves; echo checkpoint {dir}"}),
            /*in_terminal=*/false);
        CHECK(process.wait(kSeconds) == 0);
        CAPTURE(process.output());
        const std::string lines = text_of(got + "/metrics");
        CHECK(lines == text_of(run + "/metrics.jsonl") + "ended\n");
        CHECK(count(lines, "\"kind\": \"save\"") == 1);
        CHECK(count(lines, "\"kind\": \"step\"") == 12);
        CHECK(count(text_of(got + "/saves"), "draft") == 1);
        CHECK(text_of(run + "/hooks.log") ==
              "checkpoint " + fs::absolute(run + "/step-000012").string() + "\n");
        fs::remove_all(run);
        fs::remove_all(got);
    }

    TEST_CASE("Ctrl-C does not reach the hooks: they get the last lines and the last save") {
        const std::string run = fresh_folder("hooks-ctrl-c");
        const std::string got = fresh_folder("hooks-ctrl-c-got");
        fs::create_directories(got);
        Process process(
            tiny_arguments(run,
                           100000,
                           {"--set",
                            "train.epochs=100000",
                            "--set",
                            "hooks.metrics=cat > " + got + "/metrics",
                            "--set",
                            "hooks.checkpoint=sleep 0.3; echo {dir} > " + got + "/saved"}),
            /*in_terminal=*/true);
        REQUIRE(process.wait_for("step      2", kSeconds));
        process.type(3);
        CHECK(process.wait(kSeconds) == 130);
        CAPTURE(process.output());
        CHECK(text_of(got + "/metrics") == text_of(run + "/metrics.jsonl"));
        CHECK(count(text_of(got + "/metrics"), "\"kind\": \"save\"") == 1);
        CHECK(text_of(got + "/saved").find("/step-") != std::string::npos);
        fs::remove_all(run);
        fs::remove_all(got);
    }

    TEST_CASE("hooks that fail or hang neither fail nor stall a run") {
        const std::string run = fresh_folder("hooks-fail");
        Process process(tiny_arguments(run,
                                       12,
                                       {"--set",
                                        "hooks.metrics=echo no network >&2; exit 3",
                                        "--set",
                                        "hooks.checkpoint=exec sleep 20",
                                        "--set",
                                        "hooks.wait=200ms",
                                        "--set",
                                        "watchdog.after=3s"}),
                        /*in_terminal=*/false);
        CHECK(process.wait(kSeconds) == 0);
        const std::string& output = process.output();
        CAPTURE(output);
        CHECK(output.find("warning: hooks.metrics ended (exit code 3)") != std::string::npos);
        CHECK(output.find(": no network") != std::string::npos);
        CHECK(output.find("waiting for hooks.checkpoint (1 to run), at most 200 ms") !=
              std::string::npos);
        CHECK(output.find("still runs as process") != std::string::npos);
        CHECK(fs::exists(run + "/latest/state/state.json"));
        fs::remove_all(run);
    }

    TEST_CASE("a run's metrics pass through tools/hooks/wandb") {
        const std::string run = fresh_folder("hooks-wandb");
        Process process(
            tiny_arguments(run, 3, {"--set", "hooks.metrics=tools/hooks/wandb --dry-run"}),
            /*in_terminal=*/false);
        CHECK(process.wait(kSeconds) == 0);
        const std::string sent = text_of(run + "/hooks.log");
        CHECK(count(sent, "\"train/loss\"") == 3);
        CHECK(count(sent, "\"eval/acceptance_length\"") == 2);
        CHECK(sent.ends_with("finish\n"));
        fs::remove_all(run);
    }
}

}  // namespace dflash::cli
