// SPDX-License-Identifier: Apache-2.0
// A long run on eight devices with all that happens once in a while happening often: its memory
// stays flat. DFLASH_TEST_MINUTES says how long.
#include "process.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <string>
#include <vector>

namespace dflash::cli {
namespace {

namespace fs = std::filesystem;

double minutes() {
    const char* text = std::getenv("DFLASH_TEST_MINUTES");
    return text != nullptr ? std::atof(text) : 0.15;
}

/// A field of /proc/PID/status: kB of memory, or a number of threads; 0 when the process has gone.
std::int64_t status_of(pid_t pid, const std::string& field) {
    std::ifstream file(fmt::format("/proc/{}/status", pid));
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with(field + ":")) {
            return std::atoll(line.c_str() + field.size() + 1);
        }
    }
    return 0;
}

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace

TEST_SUITE("process.soak") {
    TEST_CASE("the memory of a long run on cpu:8 is flat") {
        const std::string run = fresh_folder("soak");
        // Steps of several rows, saves, evaluations, a hook, and many epochs.
        Process process({"--config", "configs/tiny-cpu.toml",
                         "--gpus",   "cpu:8",
                         "--output", run,
                         "--hours",  fmt::format("{:.6f}", minutes() / 60),
                         "--set",    "train.max_steps=1000000000",
                         "--set",    "checkpoint.every=2s",
                         "--set",    "eval.every=2s",
                         "--set",    "eval.max_fraction=1",
                         "--set",    "report.line_every=1s",
                         "--set",    "hooks.metrics=exec cat > /dev/null"},
                        /*in_terminal=*/false);
        REQUIRE(process.wait_for("step ", 60));
        std::vector<double> rss_mb;
        std::int64_t most_threads = 0;
        int code = -1;
        const auto begin = std::chrono::steady_clock::now();
        while ((code = process.wait(0.25)) == -1) {
            const std::int64_t kilobytes = status_of(process.pid(), "VmRSS");
            if (kilobytes > 0) {
                rss_mb.push_back(1e-3 * static_cast<double>(kilobytes));
                most_threads = std::max(most_threads, status_of(process.pid(), "Threads"));
            }
            const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
            REQUIRE(elapsed.count() < 60 * minutes() + 120);
        }
        CAPTURE(process.output());
        CHECK(code == 0);
        REQUIRE(rss_mb.size() >= 16);
        // The first quarter fills caches; of the rest the two halves are compared. Medians: a
        // sample in an evaluation that decodes is higher by 50 MB.
        const std::size_t quarter = rss_mb.size() / 4;
        const auto part = [&](std::size_t index) {
            const auto first = rss_mb.begin() + static_cast<std::ptrdiff_t>(index * quarter);
            return std::vector<double>(first, first + static_cast<std::ptrdiff_t>(quarter));
        };
        const double second = median(part(1));
        const double last = median(part(3));
        MESSAGE(minutes() << " minutes: " << rss_mb.size() << " samples, RSS first "
                          << rss_mb.front() << " MB, second quarter " << second
                          << " MB, last quarter " << last << " MB, at most "
                          << *std::max_element(rss_mb.begin(), rss_mb.end()) << " MB; at most "
                          << most_threads << " threads");
        // What may grow are the points of the loss curve: 16 bytes a step.
        CHECK(last < second + 8);
        fs::remove_all(run);
    }
}

}  // namespace dflash::cli
