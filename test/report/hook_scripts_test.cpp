// SPDX-License-Identifier: Apache-2.0
// tools/hooks/*: what they send, without a network.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace dflash::report {
namespace {

namespace fs = std::filesystem;

struct Ran {
    int code = -1;
    std::string output;  ///< standard output and error
};

Ran shell(const std::string& command) {
    Ran ran;
    FILE* const pipe = ::popen(("{ " + command + "; } 2>&1").c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::array<char, 4096> piece{};
    while (const std::size_t count = std::fread(piece.data(), 1, piece.size(), pipe)) {
        ran.output.append(piece.data(), count);
    }
    const int status = ::pclose(pipe);
    ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return ran;
}

/// A folder with programs that stand in for aws and rclone: they write down how they were called.
class FakePrograms {
  public:
    FakePrograms() : folder_(fs::temp_directory_path() / fmt::format("dflash-s3-{}", ::getpid())) {
        fs::remove_all(folder_);
        fs::create_directories(folder_ / "bin");
        fs::create_directories(folder_ / "my run" / "step-000500" / "draft");
        fs::create_directories(folder_ / "my run" / "step-000500" / "state");
        for (const char* tool : {"basename", "cat", "date", "head"}) {
            fs::create_symlink(fs::exists(fs::path("/bin") / tool) ? fs::path("/bin") / tool
                                                                   : fs::path("/usr/bin") / tool,
                               folder_ / "bin" / tool);
        }
    }

    ~FakePrograms() { fs::remove_all(folder_); }

    FakePrograms(const FakePrograms&) = delete;
    FakePrograms& operator=(const FakePrograms&) = delete;

    void add(const std::string& name, int exit_code) const {
        const std::string path = (folder_ / "bin" / name).string();
        std::ofstream(path) << "#!/bin/sh\necho \"" << name
                            << " $*\"\ncase \"$*\" in *-*COMPLETE|rcat*) head -c 4;; esac\nexit "
                            << exit_code << "\n";
        fs::permissions(path, fs::perms::owner_all);
    }

    std::string checkpoint() const { return (folder_ / "my run" / "step-000500").string(); }

    /// The script with only the fakes, and what it needs itself, in its way.
    Ran run(const std::string& arguments) const {
        return shell(fmt::format(
            "PATH='{}' /bin/bash tools/hooks/s3 {}", (folder_ / "bin").string(), arguments));
    }

  private:
    fs::path folder_;
};

}  // namespace

TEST_SUITE("tools.hooks") {
    TEST_CASE("wandb: groups numbers by kind, spreads lists, and leaves out what is no metric") {
        const Ran ran = shell(
            "printf '%s\\n' '{\"kind\":\"step\",\"step\":3,\"loss\":1.5,\"lr\":0.001}' "
            "'{\"kind\":\"eval\",\"step\":3,\"accuracy_by_slot\":[0.5,0.25]}' torn "
            "'{\"kind\":\"save\",\"step\":3,\"folder\":\"/a\"}' '{\"step\":4}' | "
            "tools/hooks/wandb --dry-run 2> /dev/null");
        CHECK(ran.code == 0);
        CHECK(ran.output ==
              "{\"step\": 3, \"train/loss\": 1.5, \"train/lr\": 0.001}\n"
              "{\"step\": 3, \"eval/accuracy_by_slot/1\": 0.5, \"eval/accuracy_by_slot/2\": 0.25}\n"
              "finish\n");
        CHECK(shell("echo torn | tools/hooks/wandb --dry-run")
                  .output.find("1 lines were no metrics") != std::string::npos);
    }

    TEST_CASE("wandb: without the package it says so with a code that is not tried again") {
        const Ran ran = shell("printf '' | python3 -S -I tools/hooks/wandb");
        CHECK(ran.code == 127);
        CHECK(ran.output == "the package wandb is not installed: pip install wandb\n");
    }

    TEST_CASE("s3: copies a checkpoint under its own name and marks it complete last") {
        const FakePrograms fakes;
        fakes.add("aws", 0);
        const Ran whole = fakes.run(fmt::format("'{}/' s3://bucket/runs/", fakes.checkpoint()));
        CHECK(whole.code == 0);
        CHECK(whole.output.find(fmt::format("aws s3 cp --recursive --only-show-errors {} "
                                            "s3://bucket/runs/step-000500\n"
                                            "aws s3 cp --only-show-errors - "
                                            "s3://bucket/runs/step-000500/COMPLETE\n20",
                                            fakes.checkpoint())) == 0);
        const Ran draft =
            fakes.run(fmt::format("--draft-only '{}' s3://bucket", fakes.checkpoint()));
        CHECK(draft.output.find("/draft s3://bucket/step-000500/draft\n") != std::string::npos);
    }

    TEST_CASE("s3: goes through rclone for other places") {
        const FakePrograms fakes;
        fakes.add("rclone", 0);
        const Ran ran = fakes.run(fmt::format("'{}' far:bucket", fakes.checkpoint()));
        CHECK(ran.code == 0);
        CHECK(ran.output.find(fmt::format("rclone copy {} far:bucket/step-000500\nrclone rcat "
                                          "far:bucket/step-000500/COMPLETE\n",
                                          fakes.checkpoint())) == 0);
    }

    TEST_CASE("s3: a copy that fails fails the hook, and nothing is marked complete") {
        const FakePrograms fakes;
        fakes.add("aws", 3);
        const Ran ran = fakes.run(fmt::format("'{}' s3://bucket", fakes.checkpoint()));
        CHECK(ran.code == 3);
        CHECK(ran.output.find("COMPLETE") == std::string::npos);
    }

    TEST_CASE("s3: says what is wrong with its arguments") {
        const FakePrograms fakes;
        CHECK(fakes.run("/nowhere s3://bucket").output == "/nowhere is no folder\n");
        CHECK(fakes.run(fmt::format("'{}' bucket", fakes.checkpoint())).code == 2);
        CHECK(fakes.run(fmt::format("'{}' s3://bucket", fakes.checkpoint())).code == 127);
        CHECK(fakes.run("").code == 2);
    }
}

}  // namespace dflash::report
