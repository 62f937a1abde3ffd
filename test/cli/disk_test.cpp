// SPDX-License-Identifier: Apache-2.0
// Whole runs on a disk that is full, fails, is slow, or is too small: training goes on, the last
// good save stands, and the messages say what to do.
#include "faulty_disk.hpp"
#include "process.hpp"

#include <dflash/io/json.hpp>
#include <dflash/io/safetensors.hpp>

#include <chrono>
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <sys/mount.h>
#include <thread>

namespace dflash::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kSeconds = 60;  // far more than these runs take; the machine may be busy

std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    return bytes.str();
}

/// The objects of metrics.jsonl, of which every line must be whole.
std::vector<io::Json> metrics(const std::string& run, const std::string& kind) {
    std::vector<io::Json> found;
    std::ifstream file(run + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
        io::Json object = io::Json::parse(line, "metrics.jsonl");
        if (object.require_string("kind", "metrics.jsonl") == kind) {
            found.push_back(std::move(object));
        }
    }
    return found;
}

int count_of(const std::string& text, const std::string& part) {
    int count = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
        ++count;
    }
    return count;
}

const std::vector<std::string> kOften = {"--set", "checkpoint.every=1ms"};

/// Optimizer state after `steps` steps of a run whose disk works; made once.
const std::string& reference_state(int steps) {
    static std::map<int, std::string> states;
    std::string& state = states[steps];
    if (state.empty()) {
        const std::string run = fresh_folder("reference");
        Process process(tiny_arguments(run, steps), /*in_terminal=*/false);
        REQUIRE(process.wait(kSeconds) == 0);
        state = bytes_of(run + "/latest/state/optimizer.safetensors");
        REQUIRE(!state.empty());
        fs::remove_all(run);
    }
    return state;
}

bool wait_until(const std::function<bool()>& condition) {
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::seconds(static_cast<int>(kSeconds));
    while (!condition()) {
        if (std::chrono::steady_clock::now() > until) {
            return false;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
}

/// A file system of its own of `mib` MiB at `folder`; false where one may not be mounted.
class SmallDisk {
  public:
    SmallDisk(std::string folder, int mib) : folder_(std::move(folder)) {
        fs::create_directories(folder_);
        const std::string size = "size=" + std::to_string(mib) + "m";
        mounted_ = ::mount("none", folder_.c_str(), "tmpfs", 0, size.c_str()) == 0;
    }

    ~SmallDisk() {
        if (mounted_) {
            ::umount2(folder_.c_str(), MNT_DETACH);
        }
        std::error_code ignored;
        fs::remove_all(folder_, ignored);
    }

    SmallDisk(const SmallDisk&) = delete;
    SmallDisk& operator=(const SmallDisk&) = delete;

    bool mounted() const { return mounted_; }

  private:
    std::string folder_;
    bool mounted_ = false;
};

}  // namespace

TEST_SUITE("process.disk") {
    TEST_CASE("a disk that is full for a while is one warning, and all is there in the end") {
        const FaultyDisk disk;
        for (const char* error : {"ENOSPC", "EIO"}) {
            CAPTURE(error);
            const std::string run = fresh_folder("full");
            // All that the run writes after its start, from the third save on.
            Process process(
                tiny_arguments(
                    run, 100000, {"--set", "train.epochs=100000", "--set", "checkpoint.every=1ms"}),
                /*in_terminal=*/false);
            REQUIRE(process.wait_for("saved step", kSeconds));
            disk.set("write " + run + " " + error + " 0 -1");
            REQUIRE(process.wait_for("cannot be saved", kSeconds));
            // Training goes on: lines on the screen come from steps.
            const std::string at_failure = process.output();
            CHECK(wait_until([&] {
                process.wait_for("no such text", 0.1);
                return count_of(process.output(), "step ") > count_of(at_failure, "step ") + 20;
            }));
            disk.set("");
            CHECK(process.wait_for("the disk can be written again", kSeconds));
            process.send(SIGINT);
            CHECK(process.wait(kSeconds) == 130);
            CAPTURE(process.output());
            CHECK(count_of(process.output(), "cannot be saved") == 1);
            CHECK(process.output().find("Training goes on and the save is tried again") !=
                  std::string::npos);
            CHECK(process.output().find("the last good save is " + run) != std::string::npos);
            CHECK(process.output().find("metrics.jsonl is written again; 0 lines were lost") !=
                  std::string::npos);
            // Every step has its line, whole and in its place.
            const std::vector<io::Json> steps = metrics(run, "step");
            for (std::size_t i = 0; i < steps.size(); ++i) {
                REQUIRE(steps[i].require_integer("step", "") == static_cast<std::int64_t>(i) + 1);
            }
            // What the log lacks it says.
            CHECK(bytes_of(run + "/console.log").find("lines lost here)") != std::string::npos);
            CHECK_NOTHROW(io::SafetensorsFile(run + "/latest/state/optimizer.safetensors"));
            fs::remove_all(run);
        }
    }

    TEST_CASE("a disk that stays full ends the run with exit 6, naming the save that stands") {
        const FaultyDisk disk;
        const std::string run = fresh_folder("stays-full");
        Process process(tiny_arguments(run,
                                       100000,
                                       {"--set",
                                        "train.epochs=100000",
                                        "--set",
                                        "checkpoint.every=1ms",
                                        "--set",
                                        "checkpoint.patience=1s"}),
                        /*in_terminal=*/false);
        REQUIRE(process.wait_for("saved step", kSeconds));
        disk.set("write " + run + "/step- ENOSPC 0 -1");
        REQUIRE(process.wait_for("cannot be saved", kSeconds));
        const std::string good = fs::read_symlink(run + "/latest");
        process.send(SIGINT);
        CHECK(process.wait(kSeconds) == 6);
        CAPTURE(process.output());
        CHECK(process.output().find("could not be saved in") != std::string::npos);
        CHECK(process.output().find("No space left on device") != std::string::npos);
        CHECK(process.output().find("last good save is " + run + "/" + good) != std::string::npos);
        CHECK(process.output().find("Free some space") != std::string::npos);
        CHECK(fs::read_symlink(run + "/latest") == good);
        // No half of a save is left, and the one that stands is whole.
        for (const fs::directory_entry& entry : fs::directory_iterator(run)) {
            CHECK(entry.path().string().find(".tmp-") == std::string::npos);
        }
        disk.set("");
        Process resumed({"--resume", run, "--set", "train.max_steps=1"}, /*in_terminal=*/false);
        CHECK(resumed.wait(kSeconds) == 0);
        fs::remove_all(run);
    }

    TEST_CASE("single failures of any call of a save cost a try and change no bit") {
        const FaultyDisk disk;
        constexpr int kSteps = 4;
        for (const char* rule : {"sync step- EIO 2 1",
                                 "rename step- EIO 0 1",
                                 "symlink latest EIO 0 1",
                                 "open step- ENOSPC 3 1",
                                 "mkdir step- ENOSPC 1 1",
                                 "read step- EIO 3 1",
                                 "read step- flip 2 1"}) {
            CAPTURE(rule);
            const std::string run = fresh_folder("single");
            disk.set(rule);
            Process process(tiny_arguments(run, kSteps, {"--set", "checkpoint.patience=30s"}),
                            /*in_terminal=*/false);
            CHECK(process.wait(kSeconds) == 0);
            CAPTURE(process.output());
            CHECK(count_of(process.output(), "cannot be saved") == 1);
            CHECK(process.output().find("at try 2") != std::string::npos);
            CHECK(bytes_of(run + "/latest/state/optimizer.safetensors") == reference_state(kSteps));
            fs::remove_all(run);
        }
    }

    TEST_CASE("short writes, interrupted calls and a slow disk change nothing") {
        const FaultyDisk disk;
        constexpr int kSteps = 4;
        const std::string run = fresh_folder("short");
        disk.set(
            "write .json short 0 -1\nwrite step- short 50 400\nwrite step- EINTR 5 20\n"
            "open step- EINTR 0 3\nread step- EINTR 0 3");
        Process process(tiny_arguments(run, kSteps), /*in_terminal=*/false);
        CHECK(process.wait(kSeconds) == 0);
        CAPTURE(process.output());
        for (const char* trouble : {"cannot be saved", "cannot write", "cannot read", "lost"}) {
            CAPTURE(trouble);
            CHECK(process.output().find(trouble) == std::string::npos);
        }
        CHECK(bytes_of(run + "/latest/state/optimizer.safetensors") == reference_state(kSteps));
        CHECK(metrics(run, "step").size() == kSteps);
        fs::remove_all(run);
    }

    TEST_CASE("training does not wait for a slow disk") {
        const FaultyDisk disk;
        const std::string run = fresh_folder("slow");
        disk.set("write step- slow:20 0 -1");
        Process process(tiny_arguments(run, 60, kOften), /*in_terminal=*/false);
        CHECK(process.wait(kSeconds) == 0);
        CAPTURE(process.output());
        const std::vector<io::Json> saves = metrics(run, "save");
        REQUIRE(saves.size() >= 2);
        CHECK(saves.size() < 30);
        for (const io::Json& save : saves) {
            CHECK(save.require_number("write_seconds", "") > 1);  // about 110 writes
            CHECK(save.require_number("stall_seconds", "") <
                  0.2 * save.require_number("write_seconds", ""));
        }
        CHECK(process.output().find("is still being written") != std::string::npos);
        fs::remove_all(run);
    }

    TEST_CASE("a disk that is too small is refused before anything is trained") {
        const std::string folder = fresh_folder("small-disk");
        const SmallDisk small(folder, 1);
        if (!small.mounted()) {
            MESSAGE("skipped: no file system may be mounted here");
            return;
        }
        Process process(tiny_arguments(folder + "/run", 4), /*in_terminal=*/false);
        CHECK(process.wait(kSeconds) == 6);
        CHECK(process.output().find("not enough free disk for the checkpoints") !=
              std::string::npos);
        CHECK(process.output().find("checkpoint.keep") != std::string::npos);
        CHECK_FALSE(fs::exists(folder + "/run"));
    }

    TEST_CASE("a disk that somebody else fills up keeps the last save, and takes it all later") {
        const std::string folder = fresh_folder("filled-disk");
        const SmallDisk small(folder, 48);
        if (!small.mounted()) {
            MESSAGE("skipped: no file system may be mounted here");
            return;
        }
        const std::string run = folder + "/run";
        Process process(
            tiny_arguments(
                run, 100000, {"--set", "train.epochs=100000", "--set", "checkpoint.every=1ms"}),
            /*in_terminal=*/false);
        REQUIRE(process.wait_for("saved step", kSeconds));
        {
            std::ofstream filler(folder + "/filler", std::ios::binary);
            const std::string piece(4096, 'x');
            while (filler.write(piece.data(), 4096) && filler.flush()) {
            }
        }
        REQUIRE(process.wait_for("cannot be saved", kSeconds));
        CHECK(process.wait_for("Free some space there", kSeconds));
        CHECK(fs::exists(run + "/latest/state/state.json"));
        fs::remove(folder + "/filler");
        CHECK(process.wait_for("the disk can be written again", kSeconds));
        process.send(SIGTERM);
        CHECK(process.wait(kSeconds) == 143);
        const std::vector<io::Json> steps = metrics(run, "step");
        for (std::size_t i = 0; i < steps.size(); ++i) {
            REQUIRE(steps[i].require_integer("step", "") == static_cast<std::int64_t>(i) + 1);
        }
        Process resumed({"--resume", run, "--set", "train.max_steps=1"}, /*in_terminal=*/false);
        CHECK(resumed.wait(kSeconds) == 0);
    }
}

}  // namespace dflash::cli
