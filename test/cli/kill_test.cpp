// SPDX-License-Identifier: Apache-2.0
// kill -9 at random moments, writes and renames included: what a resume finds is never corrupt, and
// the run ends with the bits of one that was never killed.
#include "process.hpp"

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
        const std::string whole = fresh_folder("whole");
        const auto started = std::chrono::steady_clock::now();
        Process reference(tiny_arguments(whole, kSteps, often), /*in_terminal=*/false);
        REQUIRE(reference.wait(120) == 0);
        // Kills fall anywhere between start-up and end, whatever the speed of the machine.
        const double whole_s =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();

        const std::string run = fresh_folder("killed");
        std::mt19937 random(20260101);
        int kills = 0;
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
            Process process(arguments, /*in_terminal=*/false);
            const int code =
                process.wait(std::uniform_real_distribution<double>(0.2, 1.0)(random) * whole_s);
            if (code == -1) {
                process.send(SIGKILL);
                CHECK(process.wait(10) == 1000 + SIGKILL);
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
        MESSAGE(kills << " kills, " << resumes << " resumes");
        CHECK(resumes > 0);
        fs::remove_all(run);
        fs::remove_all(whole);
    }
}

}  // namespace dflash::cli
