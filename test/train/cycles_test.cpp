// SPDX-License-Identifier: Apache-2.0
// Whole sessions one after the other in this process: stopped at any moment or failed anywhere,
// they leave nothing behind. DFLASH_TEST_CYCLES says how many.
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/train/fault_plan.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;

int num_cycles() {
    const char* text = std::getenv("DFLASH_TEST_CYCLES");
    return text != nullptr ? std::atoi(text) : 24;
}

/// What a session could leave behind.
struct Holdings {
    std::int64_t threads = 0;
    std::int64_t files = 0;
    std::int64_t rss_bytes = 0;

    static Holdings now() {
        Holdings all;
        const auto entries_of = [](const char* folder) {
            return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
        };
        all.threads = entries_of("/proc/self/task");
        all.files = entries_of("/proc/self/fd") - 1;  // the one that reads it
        std::ifstream statm("/proc/self/statm");
        std::int64_t pages = 0;
        statm >> pages >> pages;
        all.rss_bytes = pages * ::sysconf(_SC_PAGESIZE);
        return all;
    }
};

/// Places that fail in turn: of the graph, of workers, of the loop and of the start.
constexpr const char* kFaults[] = {
    "data encode sample 9",
    "data pack sample 40",
    "device capture row 5",
    "device train row 2",
    "device finish step 2 on cpu:7",
    "internal result of step 1",
    "data save step 1",
    "data sample 3",
    "device join the drafters on cpu:6",
    "device load the target on cpu:0",
    "internal report step 1",
    "data hand over row 4",
};

}  // namespace

TEST_SUITE("train.cycles") {
    TEST_CASE("sessions that end, are stopped or fail leave no thread, file or memory behind") {
        const int cycles = num_cycles();
        // What is made once in a process: pools of threads, caches of the allocator.
        const int warm_up = std::max(cycles / 4, 12);
        std::mt19937 random(20260101);
        Holdings base;
        Holdings last;
        int stopped = 0;
        int failed = 0;
        const auto begin = std::chrono::steady_clock::now();
        for (int cycle = 0; cycle < cycles; ++cycle) {
            CAPTURE(cycle);
            const TemporaryFolder folder;
            TrainRequest request = tiny_request(folder.path("run"), 3);
            set_roles(request, 8, "0-4", "5-7");
            request.settings.watchdog.after = {60};  // a hang ends this test with its report
            StopSignals signals;
            if (cycle % 2 == 0) {
                const auto delay = std::chrono::microseconds(
                    std::uniform_int_distribution<int>(0, 600000)(random));
                std::thread stopper([&signals, delay] {
                    std::this_thread::sleep_for(delay);
                    signals.stop_signal = SIGINT;
                });
                const int code = train(request, signals);
                stopper.join();
                CHECK((code == 0 || code == 130));
                stopped += code == 130 ? 1 : 0;
            } else {
                const std::string fault =
                    kFaults[static_cast<std::size_t>(cycle / 2) % std::size(kFaults)];
                CAPTURE(fault);
                set_faults(parse_faults(fault));
                request.settings.checkpoint.every = {1e-6};
                CHECK_THROWS_AS(train(request, signals), Error);
                set_faults({});
                ++failed;
            }
            last = Holdings::now();
            if (cycle <= warm_up) {
                base.threads = std::max(base.threads, last.threads);
                base.files = std::max(base.files, last.files);
                base.rss_bytes = std::max(base.rss_bytes, last.rss_bytes);
            }
            CHECK(last.threads <= base.threads);
            CHECK(last.files <= base.files);
        }
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        MESSAGE(cycles << " cycles in " << seconds << " s, " << stopped << " stopped, " << failed
                       << " failed; after " << warm_up + 1 << ": " << base.threads << " threads, "
                       << base.files << " files, " << base.rss_bytes / 1000000
                       << " MB; at the end: " << last.threads << " threads, " << last.files
                       << " files, " << last.rss_bytes / 1000000 << " MB");
        // A session holds some 30 MB of its own; one leaked in ten would show.
        const std::int64_t allowed = 24'000'000 + 100'000 * std::int64_t{cycles};
        CHECK(last.rss_bytes < base.rss_bytes + allowed);
        CHECK(failed == cycles / 2);
    }
}

}  // namespace dflash::train
