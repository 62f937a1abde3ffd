// SPDX-License-Identifier: Apache-2.0
// Whole runs in which something is not finite: a target that overflows on one token, and a drafter
// that diverges.
#include "../target/model_folder.hpp"
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/data/tokenizer.hpp>
#include <dflash/report/console.hpp>
#include <dflash/train/checkpoint.hpp>
#include <dflash/train/prepared_run.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fstream>
#include <iterator>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;
using target::testing::OwnedTensor;

constexpr const char* kTrigger = "\x7f";  // a character that the data does not hold
constexpr std::int64_t kDimension = 5;

at::Tensor view_of(OwnedTensor& tensor) {
    REQUIRE((tensor.dtype == io::DType::F32));
    return at::from_blob(tensor.data.data(), tensor.shape, at::kFloat);
}

/// The tiny target, changed so that its residual stream overflows where kTrigger stands, and only
/// from there on: a dimension that only kTrigger's embedding has goes through the first MLP with
/// weights of 1e30. All weights are finite.
void make_overflowing_target(const std::string& folder) {
    fs::copy("test/golden/targets/T1", folder);
    const auto tokenizer = data::Tokenizer::from_file(folder + "/tokenizer.json");
    const std::vector<TokenId> trigger = tokenizer.encode(kTrigger).ids;
    REQUIRE(trigger.size() == 1);
    int changed = 0;
    for (const char* shard :
         {"/model-00001-of-00002.safetensors", "/model-00002-of-00002.safetensors"}) {
        std::vector<OwnedTensor> tensors = target::testing::read_tensors(folder + shard);
        for (OwnedTensor& tensor : tensors) {
            if (tensor.name == "model.embed_tokens.weight") {
                const at::Tensor embed_VH = view_of(tensor);
                embed_VH.select(1, kDimension).zero_();
                embed_VH[trigger.front()].zero_();
                embed_VH[trigger.front()][kDimension] = 1;
                ++changed;
            } else if (tensor.name == "model.layers.0.self_attn.o_proj.weight") {
                view_of(tensor)[kDimension].zero_();
                ++changed;
            } else if (tensor.name == "model.layers.0.mlp.gate_proj.weight" ||
                       tensor.name == "model.layers.0.mlp.up_proj.weight") {
                view_of(tensor).select(1, kDimension).fill_(1e30);
                ++changed;
            }
        }
        target::testing::write_tensors(folder + shard, tensors);
    }
    REQUIRE(changed == 4);
}

/// The tiny data with kTrigger at the beginning of the answers of these samples.
void make_data(const std::string& path, const std::vector<SampleId>& poisoned) {
    std::ifstream tiny("test/golden/tiny-data.jsonl");
    std::ofstream data(path, std::ios::binary);
    SampleId id = 0;
    for (std::string line; std::getline(tiny, line); ++id) {
        if (std::find(poisoned.begin(), poisoned.end(), id) != poisoned.end()) {
            data << R"({"messages": [{"role": "user", "content": "hello there"}, )"
                 << R"({"role": "assistant", "content": ")"
                 << "\\u007f"
                 << R"( the quick brown fox jumps over the dog and sleeps"}]})"
                 << "\n";
        } else {
            data << line << "\n";
        }
    }
}

class Scene {
  public:
    Scene() { make_overflowing_target(folder_.path("target")); }

    /// `poisoned`: places in the list of training samples.
    TrainRequest request(const std::string& name,
                         std::int64_t steps,
                         const std::vector<std::size_t>& poisoned) {
        TrainRequest result = tiny_request(path(name), steps);
        result.settings.run.target = path("target");
        result.settings.run.data = path(name + ".jsonl");
        make_data(result.settings.run.data, {});
        const std::vector<SampleId> ids = prepare_run(result.settings).train_ids;
        poisoned_.clear();
        for (const std::size_t place : poisoned) {
            poisoned_.push_back(ids.at(place));
        }
        make_data(result.settings.run.data, poisoned_);
        return result;
    }

    const std::vector<SampleId>& poisoned() const { return poisoned_; }

    std::string path(const std::string& name) const { return folder_.path(name); }

  private:
    TemporaryFolder folder_;
    std::vector<SampleId> poisoned_;
};

/// Steps that metrics.jsonl calls skipped.
std::vector<std::int64_t> skipped_steps(const std::string& run_folder) {
    std::vector<std::int64_t> steps;
    for (const io::Json& step : metrics(run_folder, "step")) {
        if (step.find("skipped")->as_bool()) {
            steps.push_back(step.require_integer("step", ""));
        }
    }
    return steps;
}

std::string optimizer_bytes(const std::string& run_folder, std::int64_t step) {
    return file_bytes(CheckpointStore(run_folder, 2, 3).folder_of(step) +
                      "/state/optimizer.safetensors");
}

std::int64_t optimizer_steps(const std::string& run_folder) {
    return io::read_json_file(run_folder + "/latest/state/state.json")
        .require_integer("optimizer_steps", "state.json");
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("train.numeric_run") {
    TEST_CASE("a sample on which the target overflows costs its step, and nothing else") {
        for (const int drafters : {1, 2, 3}) {
            CAPTURE(drafters);
            Scene scene;
            TrainRequest request = scene.request("a", 12, {7});
            set_roles(request, drafters + 1, "0", "1-" + std::to_string(drafters));
            REQUIRE(run(request) == 0);
            report::console().flush();
            const std::string log = file_bytes(scene.path("a") + "/console.log");
            const std::vector<std::int64_t> skipped = skipped_steps(scene.path("a"));
            REQUIRE(skipped.size() >= 1);
            CHECK(skipped.size() <= 3);  // once an epoch
            CHECK(optimizer_steps(scene.path("a")) == 12 - std::ssize(skipped));
            CAPTURE(log);
            CHECK(contains(log, "features of the target not finite in 1 of its"));
            const std::string warning = log.substr(log.find("is skipped"));
            const std::string samples = warning.substr(0, warning.find('\n'));
            CHECK(contains(samples, "(samples "));
            CHECK((contains(samples, fmt::format(" {},", scene.poisoned().front())) ||
                   contains(samples, fmt::format(" {} (", scene.poisoned().front())) ||
                   contains(samples, fmt::format(" {})", scene.poisoned().front()))));
            CHECK(contains(log, fmt::format("{} of them were skipped", skipped.size())));
            // Every other step is finite.
            for (const io::Json& step : metrics(scene.path("a"), "step")) {
                const bool was_skipped = step.find("skipped")->as_bool();
                CHECK(step.find("grad_norm")->is_number() != was_skipped);
            }
        }
    }

    TEST_CASE("a checkpoint behind a skipped step has the bits of the one before") {
        Scene scene;
        TrainRequest request = scene.request("a", 12, {7});
        REQUIRE(run(request) == 0);
        const std::vector<std::int64_t> skipped = skipped_steps(scene.path("a"));
        REQUIRE(!skipped.empty());
        REQUIRE(skipped.front() > 1);
        const std::int64_t step = skipped.front();
        const auto bytes_after = [&](std::int64_t steps) {
            TrainRequest part = request;
            part.settings.run.output = scene.path("part" + std::to_string(steps));
            part.settings.train.max_steps = steps;
            REQUIRE(run(part) == 0);
            return optimizer_bytes(part.settings.run.output, steps);
        };
        const std::string behind = bytes_after(step);
        CHECK(behind == bytes_after(step - 1));
        CHECK(behind != bytes_after(step + 1));
    }

    TEST_CASE("a run with skipped steps continues bit for bit") {
        Scene scene;
        TrainRequest whole = scene.request("whole", 16, {7});
        REQUIRE(run(whole) == 0);
        const std::vector<std::int64_t> skipped = skipped_steps(scene.path("whole"));
        REQUIRE(!skipped.empty());
        for (const std::int64_t stop_at : {skipped.front(), skipped.front() + 2}) {
            CAPTURE(stop_at);
            TrainRequest part = whole;
            const std::string folder = scene.path("part" + std::to_string(stop_at));
            part.settings.run.output = folder;
            part.settings.train.max_steps = stop_at;
            REQUIRE(run(part) == 0);
            TrainRequest rest = whole;
            rest.resume_folder = folder;
            REQUIRE(run(rest) == 0);
            CHECK(optimizer_bytes(folder, 16) == optimizer_bytes(scene.path("whole"), 16));
            CHECK(optimizer_steps(folder) == optimizer_steps(scene.path("whole")));
            CHECK(skipped_steps(folder) == skipped);
        }
    }

    TEST_CASE("a checkpoint without a count of its own takes that of the run") {
        const TemporaryFolder folder;
        run(tiny_request(folder.path("a"), 3));
        const std::string path = folder.path("a") + "/latest/state/state.json";
        std::string text = file_bytes(path);
        const std::string field = "\"optimizer_steps\": 3,";
        const std::size_t at = text.find(field);
        REQUIRE(at != std::string::npos);
        text.erase(at, field.size());
        // Nor had it checksums.
        const std::string list = ",\n  \"checksums\": \"checksums.xxh64\"";
        REQUIRE(contains(text, list));
        std::ofstream(path, std::ios::binary) << text.erase(text.find(list), list.size());
        fs::remove(folder.path("a") + "/latest/checksums.xxh64");
        CHECK(CheckpointStore(folder.path("a"), 2, 3).load(std::nullopt).optimizer.steps == 3);
    }

    TEST_CASE("three in a row end the run; what was saved before stands") {
        Scene scene;
        // Every other sample, so that nearly every step has one.
        std::vector<std::size_t> places;
        for (std::size_t place = 0; place < 80; place += 2) {
            places.push_back(place);
        }
        TrainRequest request = scene.request("a", 40, places);
        request.settings.checkpoint.every = {1e-6};
        try {
            run(request);
            FAIL("expected an error");
        } catch (const Error& error) {
            CHECK((error.kind() == ErrorKind::Numeric));
            CAPTURE(error.what());
            CHECK(contains(error.parts().what, "steps in a row were skipped"));
            CHECK(contains(error.parts().what, "features of the target"));
            CHECK(contains(error.parts().where, scene.path("a.jsonl") + ":"));
            CHECK(contains(error.parts().cause, "the target computes NaN or infinity"));
        }
        const std::vector<std::int64_t> skipped = skipped_steps(scene.path("a"));
        REQUIRE(skipped.size() == 3);
        // Nothing is written after an error; what was saved before the last of the three stands.
        const Checkpoint last = CheckpointStore(scene.path("a"), 2, 3).load(std::nullopt);
        CHECK(last.progress.step < skipped.back());
        CHECK(last.optimizer.steps ==
              last.progress.step - std::count_if(skipped.begin(), skipped.end(), [&](auto step) {
                  return step <= last.progress.step;
              }));
    }

    TEST_CASE("a drafter that diverges ends the run and is told from a bad target") {
        for (const int drafters : {1, 3}) {
            CAPTURE(drafters);
            const TemporaryFolder folder;
            TrainRequest request = tiny_request(folder.path("a"), 40);
            request.settings.train.lr = 1e30;
            set_roles(request, drafters + 1, "0", "1-" + std::to_string(drafters));
            try {
                run(request);
                FAIL("expected an error");
            } catch (const Error& error) {
                CHECK((error.kind() == ErrorKind::Numeric));
                CAPTURE(error.what());
                CHECK(contains(error.parts().cause, "the drafter diverged"));
                CHECK(contains(error.parts().hint, "train.lr"));
            }
            const std::vector<std::int64_t> skipped = skipped_steps(folder.path("a"));
            REQUIRE(skipped.size() == 3);
            CHECK(skipped.back() - skipped.front() == 2);
        }
    }

    TEST_CASE("a held-out loss that is not finite ends the run, at step 0 and later") {
        Scene scene;
        TrainRequest request = scene.request("a", 4, {});
        const std::vector<SampleId> held_out = prepare_run(request.settings).held_out_ids;
        REQUIRE(!held_out.empty());
        make_data(request.settings.run.data, {held_out.front()});
        const auto message = [&](std::int64_t steps) {
            request.settings.run.output = scene.path("run" + std::to_string(steps));
            request.settings.train.max_steps = steps;
            try {
                run(request);
                FAIL("expected an error");
            } catch (const Error& error) {
                CHECK((error.kind() == ErrorKind::Numeric));
                return error.parts().what;
            }
            return std::string();
        };
        CHECK(contains(message(4), "held-out loss at step 0"));

        TrainRequest diverging = tiny_request(scene.path("diverging"), 1);
        diverging.settings.train.lr = 1e30;
        try {
            run(diverging);
            FAIL("expected an error");
        } catch (const Error& error) {
            CHECK(contains(error.parts().what, "held-out loss at step 1"));
        }
    }
}

}  // namespace dflash::train
