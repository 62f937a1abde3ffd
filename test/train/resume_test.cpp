// SPDX-License-Identifier: Apache-2.0
// What a resume does with finished, interrupted and damaged runs.
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/train/checkpoint.hpp>

#include <csignal>
#include <doctest/doctest.h>
#include <fstream>
#include <functional>
#include <iterator>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSteps = 2;

TrainRequest resume_request(const std::string& folder) {
    TrainRequest request = tiny_request(folder, kSteps);
    request.resume_folder = folder;
    return request;
}

void replace_text(const std::string& path, const std::string& from, const std::string& to) {
    std::string text = file_bytes(path);
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    std::ofstream(path, std::ios::binary) << text.replace(at, from.size(), to);
}

}  // namespace

TEST_SUITE("train.resume") {
    TEST_CASE("a finished run that is resumed is not evaluated twice at its last step") {
        const TemporaryFolder folder;
        REQUIRE(run(tiny_request(folder.path("a"), kSteps)) == 0);
        const std::string before = file_bytes(folder.path("a") + "/metrics.jsonl");
        REQUIRE(run(resume_request(folder.path("a"))) == 0);
        CHECK(file_bytes(folder.path("a") + "/metrics.jsonl") == before);
    }

    TEST_CASE("a stop before the first evaluation ends without one, and a resume makes it") {
        const TemporaryFolder folder;
        StopSignals signals;
        signals.stop_signal = SIGINT;
        CHECK(train(tiny_request(folder.path("a"), kSteps), signals) == 130);
        CHECK(metrics(folder.path("a"), "eval").empty());
        REQUIRE(run(resume_request(folder.path("a"))) == 0);
        CHECK(metrics(folder.path("a"), "eval").size() == 2);
        CHECK(std::ssize(losses(folder.path("a"))) == kSteps);
    }

    TEST_CASE("the acceptance of a step that was saved before its evaluation is added") {
        const TemporaryFolder folder;
        TrainRequest request = tiny_request(folder.path("a"), kSteps);
        request.settings.checkpoint.every = {1e-6};  // after every step, so before the last one's
        REQUIRE(run(request) == 0);
        const CheckpointStore store(folder.path("a"), 2, 3);
        REQUIRE(store.acceptance_of(kSteps));
        CHECK(*store.acceptance_of(kSteps) >= 1);
        CHECK_FALSE(store.acceptance_of(kSteps - 1));
    }

    TEST_CASE("a damaged checkpoint is a data error that says where and what to do") {
        const TemporaryFolder folder;
        REQUIRE(run(tiny_request(folder.path("whole"), kSteps)) == 0);
        const std::string step = "/step-000002";

        struct Damage {
            std::string file;
            std::function<void(const std::string&)> apply;
            std::string message;  // of a checkpoint without checksums, as older ones are
            std::string with_checksums;
        };

        const auto remove_file = [](const std::string& path) { fs::remove(path); };
        const auto cut = [](const std::string& path) { fs::resize_file(path, 100); };
        const auto edit = [](const std::string& from, const std::string& to) {
            return [=](const std::string& path) { replace_text(path, from, to); };
        };
        for (const Damage& damage : std::vector<Damage>{
                 {"/state/optimizer.safetensors", remove_file, "cannot read", "is missing"},
                 {"/state/optimizer.safetensors",
                  cut,
                  "the file has 92 after the length",
                  "is damaged"},
                 {"/state/state.json", cut, "not JSON", "not JSON"},
                 {"/state/state.json",
                  edit("\"step\": 2", "\"step\": 3"),
                  "got 3, expected 2",
                  "is damaged"},
                 {"/state/state.json",
                  edit("\"rows\": ", "\"rows\": -"),
                  "expected 0 or more",
                  "is damaged"},
                 {"/state/state.json",
                  edit("\"epoch\": ", "\"epoch\": -5"),
                  "expected 0 or more",
                  "is damaged"},
                 {"/draft/config.json", remove_file, "cannot read", "is missing"},
             }) {
            for (const bool listed : {true, false}) {
                CAPTURE(damage.file);
                CAPTURE(damage.message);
                CAPTURE(listed);
                const std::string run_folder = folder.path("damaged");
                fs::remove_all(run_folder);
                fs::copy(folder.path("whole"),
                         run_folder,
                         fs::copy_options::recursive | fs::copy_options::copy_symlinks);
                if (!listed) {
                    fs::remove(run_folder + step + "/checksums.xxh64");
                    replace_text(run_folder + step + "/state/state.json",
                                 ",\n  \"checksums\": \"checksums.xxh64\"",
                                 "");
                }
                damage.apply(run_folder + step + damage.file);
                try {
                    run(resume_request(run_folder));
                    FAIL("expected an error");
                } catch (const Error& error) {
                    CHECK(error.kind() == ErrorKind::Data);
                    CHECK(std::string(error.what())
                              .find(listed ? damage.with_checksums : damage.message) !=
                          std::string::npos);
                    CHECK(error.parts().where.find(step + damage.file) != std::string::npos);
                    CHECK(error.parts().hint.find("The checkpoint is damaged") == 0);
                }
            }
        }
    }
}

}  // namespace dflash::train
