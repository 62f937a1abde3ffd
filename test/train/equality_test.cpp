// SPDX-License-Identifier: Apache-2.0
// Runs that must agree: other device counts to rounding, other replica counts and resumed runs bit
// for bit.
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/train/checkpoint.hpp>

#include <cstdint>
#include <cstring>
#include <doctest/doctest.h>
#include <fstream>

namespace dflash::train {
namespace {

// fp32 sums in another order differ by about 1e-6 relative; 20 AdamW steps from random weights
// magnify that.
constexpr double kRounding = 2e-4;

void check_close(const std::vector<double>& got, const std::vector<double>& expected) {
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        CHECK(got[i] == doctest::Approx(expected[i]).epsilon(kRounding));
    }
}

std::string weights_of(const std::string& run_folder, std::int64_t step) {
    const CheckpointStore store(run_folder, 2, 3);
    return file_bytes(store.folder_of(step) + "/state/optimizer.safetensors");
}

}  // namespace

TEST_SUITE("train.equality") {
    TEST_CASE("a run learns, and its files are complete") {
        const TemporaryFolder folder;
        REQUIRE(run(tiny_request(folder.path("a"), 20)) == 0);
        const std::vector<double> curve = losses(folder.path("a"));
        REQUIRE(curve.size() == 20);
        CHECK(curve.back() < curve.front() - 0.5);
        CHECK(metrics(folder.path("a"), "eval").size() == 2);  // at step 0 and at the end
        for (const char* file : {"config.toml",
                                 "environment.json",
                                 "console.log",
                                 "data-report.md",
                                 "latest/draft/config.json",
                                 "latest/draft/model.safetensors",
                                 "latest/state/optimizer.safetensors",
                                 "latest/state/state.json"}) {
            CAPTURE(file);
            CHECK(std::filesystem::exists(folder.path("a") + "/" + file));
        }
        for (const char* key : {"step",
                                "epoch",
                                "rows",
                                "tokens",
                                "loss",
                                "lr",
                                "grad_norm",
                                "accuracy",
                                "seconds",
                                "drafter_tokens_per_s",
                                "target_tokens_per_s",
                                "drafter_waited",
                                "target_waited"}) {
            CAPTURE(key);
            CHECK(metrics(folder.path("a"), "step").front().find(key) != nullptr);
        }
    }

    TEST_CASE("the same run gives the same bits") {
        const TemporaryFolder folder;
        run(tiny_request(folder.path("a"), 6));
        run(tiny_request(folder.path("b"), 6));
        CHECK(losses(folder.path("a")) == losses(folder.path("b")));
        CHECK(weights_of(folder.path("a"), 6) == weights_of(folder.path("b"), 6));
    }

    TEST_CASE("1, 2, 3 and 4 drafters agree to rounding") {
        const TemporaryFolder folder;
        std::vector<double> one;
        for (int drafters = 1; drafters <= 4; ++drafters) {
            CAPTURE(drafters);
            const std::string output = folder.path(std::to_string(drafters));
            TrainRequest request = tiny_request(output, 12);
            set_roles(request, drafters + 1, "0", "1-" + std::to_string(drafters));
            REQUIRE(run(request) == 0);
            if (drafters == 1) {
                one = losses(output);
            } else {
                check_close(losses(output), one);
            }
        }
    }

    TEST_CASE("with D-PACE a step's loss is a document's, with 1 and with 2 drafters") {
        const TemporaryFolder folder;
        const auto losses_of = [&](int drafters, const std::string& weights) {
            const std::string output = folder.path(weights + std::to_string(drafters));
            TrainRequest request = tiny_request(output, 4);
            request.settings.train.loss_weights = weights;
            set_roles(request, drafters + 1, "0", "1-" + std::to_string(drafters));
            REQUIRE(run(request) == 0);
            return losses(output);
        };
        const std::vector<double> one = losses_of(1, "dpace");
        check_close(losses_of(2, "dpace"), one);
        // Weights of a slot are about 2^-k at first, so a block's sum is about 2; and a document
        // has up to 16 blocks.
        CHECK(one.front() > 4 * losses_of(1, "decay").front());
    }

    TEST_CASE("1, 2 and 3 target replicas agree bit for bit") {
        const TemporaryFolder folder;
        for (int targets = 1; targets <= 3; ++targets) {
            CAPTURE(targets);
            const std::string output = folder.path(std::to_string(targets));
            TrainRequest request = tiny_request(output, 8);
            set_roles(
                request, targets + 1, "0-" + std::to_string(targets - 1), std::to_string(targets));
            REQUIRE(run(request) == 0);
            CHECK(losses(output) == losses(folder.path("1")));
            CHECK(weights_of(output, 8) == weights_of(folder.path("1"), 8));
        }
    }

    TEST_CASE("both roles on one device agree bit for bit with two devices") {
        const TemporaryFolder folder;
        run(tiny_request(folder.path("two"), 6));
        TrainRequest request = tiny_request(folder.path("one"), 6);
        request.settings.run.gpus = "cpu:1";
        run(request);
        CHECK(weights_of(folder.path("one"), 6) == weights_of(folder.path("two"), 6));
    }

    TEST_CASE("20 steps are 10 steps and 10 more after a resume, bit for bit, also in mid-epoch") {
        const TemporaryFolder folder;
        run(tiny_request(folder.path("whole"), 20));
        for (const std::int64_t stop_at : {std::int64_t{10}, std::int64_t{3}}) {
            CAPTURE(stop_at);
            const std::string output = folder.path("parts" + std::to_string(stop_at));
            run(tiny_request(output, stop_at));
            TrainRequest more = tiny_request(output, 20);
            more.resume_folder = output;
            run(more);
            CHECK(losses(output) == losses(folder.path("whole")));
            CHECK(weights_of(output, 20) == weights_of(folder.path("whole"), 20));
        }
    }

    TEST_CASE("a run stopped with 3 drafters goes on with 2, to rounding") {
        const TemporaryFolder folder;
        TrainRequest whole = tiny_request(folder.path("whole"), 16);
        set_roles(whole, 4, "0", "1-3");
        run(whole);
        TrainRequest part = tiny_request(folder.path("parts"), 8);
        set_roles(part, 4, "0", "1-3");
        run(part);
        TrainRequest more = tiny_request(folder.path("parts"), 16);
        set_roles(more, 3, "0", "1-2");
        more.resume_folder = folder.path("parts");
        run(more);
        check_close(losses(folder.path("parts")), losses(folder.path("whole")));
    }

    TEST_CASE("a resume that would change the maths is refused and says what") {
        const TemporaryFolder folder;
        run(tiny_request(folder.path("a"), 2));
        const auto message = [&](const std::function<void(Settings&)>& change) {
            TrainRequest request = tiny_request(folder.path("a"), 4);
            request.resume_folder = folder.path("a");
            change(request.settings);
            try {
                run(request);
            } catch (const Error& error) {
                CHECK(error.kind() == ErrorKind::Config);
                return std::string(error.what());
            }
            return std::string();
        };
        CHECK(message([](Settings& s) {
                  s.draft.anchors = 8;
              }).find("draft.anchors: 16 when it was saved, 8 now") != std::string::npos);
        CHECK(message([](Settings& s) { s.run.seed = 1; }).find("run.seed") != std::string::npos);
        // Another target of the same shape: a few bytes of one weight differ.
        const std::string other = folder.path("other-target");
        std::filesystem::copy("test/golden/targets/T1", other);
        const std::string shard = other + "/model-00001-of-00002.safetensors";
        std::string bytes = file_bytes(shard);
        const std::uint64_t header = [&] {
            std::uint64_t length = 0;
            std::memcpy(&length, bytes.data(), sizeof length);
            return length;
        }();
        for (std::size_t i = 8 + header; i < bytes.size(); i += 512) {
            bytes[i] = static_cast<char>(bytes[i] ^ 1);
        }
        std::ofstream(shard, std::ios::binary) << bytes;
        CHECK(message([&](Settings& s) { s.run.target = other; }).find("target: ") !=
              std::string::npos);
        CHECK(message([](Settings& s) { s.report.every = {1}; }).empty());
    }

    TEST_CASE("a drafter can be started from another run's draft") {
        const TemporaryFolder folder;
        run(tiny_request(folder.path("a"), 12));
        TrainRequest request = tiny_request(folder.path("b"), 2);
        request.settings.run.init = folder.path("a") + "/latest/draft";
        REQUIRE(run(request) == 0);
        CHECK(losses(folder.path("b")).front() < losses(folder.path("a")).front() - 0.3);
    }

    TEST_CASE("what is left at the end of the data is a last, short step") {
        const TemporaryFolder folder;
        TrainRequest request = tiny_request(folder.path("a"), 1000);
        request.settings.train.epochs = 2;
        request.settings.train.rows_per_step = 7;
        REQUIRE(run(request) == 0);
        const std::vector<io::Json> steps = metrics(folder.path("a"), "step");
        const auto rows = steps.back().require_integer("rows", "");
        CHECK(static_cast<std::int64_t>(steps.size()) == (rows + 6) / 7);
        CHECK(steps.back().require_number("fraction_done", "") == 1.0);
        // 96 samples less those held out, twice.
        CHECK(steps.back().require_integer("samples", "") % 2 == 0);
    }
}

}  // namespace dflash::train
