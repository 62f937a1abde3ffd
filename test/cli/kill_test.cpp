// SPDX-License-Identifier: Apache-2.0
// kill -9 at random moments, writes and renames included: what a resume finds is never corrupt, and
// the run ends with the bits of one that was never killed.
#include "faulty_disk.hpp"
#include "process.hpp"

#include <dflash/io/checksums.hpp>
#include <dflash/io/json.hpp>
#include <dflash/io/safetensors.hpp>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

namespace dflash::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 30;

std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    return bytes.str();
}

// Everything that another program may read is complete; the last line of metrics.jsonl alone may be
// torn.
void check_intact(const std::string& run) {
    if (!fs::exists(run)) {
        return;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(run)) {
        const std::string name = entry.path().filename().string();
        if (name.starts_with("step-") && name.find(".tmp-") == std::string::npos) {
            CAPTURE(name);
            CHECK_NOTHROW(io::SafetensorsFile((entry.path() / "draft/model.safetensors").string()));
            CHECK_NOTHROW(io::read_json_file((entry.path() / "draft/config.json").string()));
            if (fs::exists(entry.path() / "state")) {
                // A kill between the two parts of adding an acceptance leaves it unlisted.
                CHECK_NOTHROW(io::verify_checksums(
                    entry.path().string(),
                    io::read_checksums((entry.path() / "checksums.xxh64").string()),
                    io::From::Anywhere));
                CHECK_NOTHROW(
                    io::SafetensorsFile((entry.path() / "state/optimizer.safetensors").string()));
                CHECK_NOTHROW(io::read_json_file((entry.path() / "state/state.json").string()));
            }
        }
    }
    if (fs::is_symlink(run + "/latest")) {
        CHECK(fs::exists(run + "/latest/draft/model.safetensors"));
    }
}

int num_kills() {
    const char* text = std::getenv("DFLASH_TEST_KILLS");
    return text != nullptr ? std::atoi(text) : 12;
}

}  // namespace

TEST_SUITE("process.kill") {
    TEST_CASE("a run killed again and again ends like one that was never killed") {
        // A save after every step, so that many kills fall into one.
        const std::vector<std::string> often = {"--set", "checkpoint.every=1ms"};
        const FaultyDisk disk;
        const std::string whole = fresh_folder("whole");
        disk.set("any " + whole + " none 0 0");
        const auto started = std::chrono::steady_clock::now();
        Process reference(tiny_arguments(whole, kSteps, often), /*in_terminal=*/false);
        REQUIRE(reference.wait(120) == 0);
        // Kills fall anywhere between start-up and end, whatever the speed of the machine.
        const double whole_s =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
        const std::int64_t num_calls = disk.count();
        REQUIRE(num_calls > 100);

        const std::string run = fresh_folder("killed");
        std::mt19937 random(20260101);
        int kills = 0;
        int in_calls = 0;
        int resumes = 0;
        while (kills < num_kills()) {
            std::vector<std::string> arguments = tiny_arguments(run, kSteps, often);
            if (fs::is_symlink(run + "/latest")) {
                arguments = {"--resume",
                             run,
                             "--set",
                             "train.max_steps=" + std::to_string(kSteps),
                             "--set",
                             "checkpoint.every=1ms"};
                ++resumes;
            } else {
                fs::remove_all(run);
            }
            // By the clock, instead of one of the calls that change files, or half-way in a write.
            const int how = std::uniform_int_distribution<int>(0, 2)(random);
            const auto call = std::uniform_int_distribution<std::int64_t>(0, num_calls)(random);
            if (how == 0) {
                disk.set("");
            } else if (how == 1) {
                disk.set("any " + run + " kill " + std::to_string(call) + " 1");
            } else {
                disk.set("write " + run + " tear " + std::to_string(call / 2) + " 1");
            }
            Process process(arguments, /*in_terminal=*/false);
            const double patience =
                how == 0 ? std::uniform_real_distribution<double>(0.2, 1.0)(random) * whole_s : 120;
            int code = process.wait(patience);
            if (code == -1) {
                REQUIRE(how == 0);
                process.send(SIGKILL);
                code = process.wait(10);  // the run may have reached its end before the signal
            } else if (code == 1000 + SIGKILL) {
                ++in_calls;
            }
            if (code == 1000 + SIGKILL) {
                ++kills;
            } else {
                CAPTURE(process.output());
                REQUIRE(code == 0);
                CHECK(bytes_of(run + "/latest/state/optimizer.safetensors") ==
                      bytes_of(whole + "/latest/state/optimizer.safetensors"));
                fs::remove_all(run);
            }
            check_intact(run);
        }
        // Whatever is left is finished, and equals the run that was never killed.
        disk.set("");
        const std::vector<std::string> last = fs::is_symlink(run + "/latest")
                                                  ? std::vector<std::string>{"--resume", run}
                                                  : tiny_arguments(run, kSteps, often);
        if (!fs::is_symlink(run + "/latest")) {
            fs::remove_all(run);
        }
        Process finish(last, /*in_terminal=*/false);
        CHECK(finish.wait(120) == 0);
        CAPTURE(finish.output());
        CHECK(bytes_of(run + "/latest/state/optimizer.safetensors") ==
              bytes_of(whole + "/latest/state/optimizer.safetensors"));
        MESSAGE(kills << " kills, " << in_calls << " of them in calls on files, " << resumes
                      << " resumes");
        CHECK(resumes > 0);
        CHECK(in_calls > 0);
        fs::remove_all(run);
        fs::remove_all(whole);
    }
}

}  // namespace dflash::cli
