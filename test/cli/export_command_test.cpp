// SPDX-License-Identifier: Apache-2.0
#include "../train/small_checkpoint.hpp"
#include "captured_run.hpp"

#include <dflash/train/checkpoint.hpp>

#include <doctest/doctest.h>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace dflash::cli {
namespace {

namespace fs = std::filesystem;

/// A folder with a run that saved two steps.
class Scene {
  public:
    Scene()
        : folder_(fs::temp_directory_path() /
                  ("dflash-export-command-" + std::to_string(::getpid()))) {
        fs::remove_all(folder_);
        fs::create_directories(folder_ / "run");
        train::CheckpointStore store(path("run"), 2, 3);
        store.save(train::small_checkpoint(3), 2.5);
        store.save(train::small_checkpoint(7), 2.0);
    }

    ~Scene() {
        std::error_code ignored;
        fs::remove_all(folder_, ignored);
    }

    Scene(const Scene&) = delete;
    Scene& operator=(const Scene&) = delete;

    std::string path(const std::string& name) const { return (folder_ / name).string(); }

    Outcome run(std::vector<std::string> arguments) const {
        arguments.insert(arguments.begin(), "export");
        return captured_run(std::move(arguments));
    }

  private:
    fs::path folder_;
};

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("cli.export") {
    TEST_CASE("writes, says what it checked, which step is better, and how to serve it") {
        const Scene scene;
        const Outcome outcome = scene.run(
            {scene.path("run"), "--to", "vllm", "--output", scene.path("new/out"), "--check"});
        CAPTURE(outcome.output);
        REQUIRE(outcome.code == 0);
        CHECK(fs::exists(scene.path("new/out/config.json")));
        CHECK(fs::exists(scene.path("new/out/model.safetensors")));
        CHECK(contains(outcome.output, "step-000007/draft"));
        CHECK(contains(outcome.output, "2.500, is that of step 3"));
        CHECK(contains(outcome.output, "target layers [1, 2] of 4, counted from 0"));
        CHECK(contains(outcome.output, "as auxiliary ids [2, 3]"));
        CHECK(contains(outcome.output, "14 weights and 8 hidden rows"));
        CHECK(contains(outcome.output, "serve     vLLM: vllm serve TARGET --speculative-config"));
        CHECK_FALSE(contains(outcome.output, "SGLang"));
    }

    TEST_CASE("bad input gets exit code 2 and leaves nothing") {
        const Scene scene;
        const std::string run = scene.path("run");
        const std::string out = scene.path("out");
        for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
                 {},
                 {run},
                 {run, "--to", "zlab"},
                 {run, "--to", "vlm", "--output", out},
                 {run, "--to", "zlab", "--output", out, "--step", "4"},
                 {run, "--to", "zlab", "--output", run},
                 {run, "--to", "speculators", "--output", out},
                 {run, "--to", "zlab", "--output", out, "--target", scene.path("none")},
                 {scene.path("none"), "--to", "zlab", "--output", out},
                 {run, "--to", "zlab", "--output", out, "--format", "x"}}) {
            CAPTURE(arguments.size());
            CHECK(scene.run(arguments).code == 2);
            CHECK_FALSE(fs::exists(out));
        }
    }
}

}  // namespace dflash::cli
