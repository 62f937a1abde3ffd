// SPDX-License-Identifier: Apache-2.0
// Export of saved drafters, the comparison behind --check, and the way back through --init.
#include "../target/model_folder.hpp"
#include "small_checkpoint.hpp"
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/io/json.hpp>
#include <dflash/model/drafter.hpp>
#include <dflash/train/checkpoint.hpp>
#include <dflash/train/export.hpp>

#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;
using model::DraftFormat;
using target::testing::OwnedTensor;

/// A run folder with checkpoints of the small drafter.
class Scene {
  public:
    explicit Scene(std::vector<std::int64_t> steps = {3, 7}) {
        fs::create_directories(path("run"));
        CheckpointStore store(path("run"), 2, 3);
        for (const std::int64_t step : steps) {
            Checkpoint checkpoint = small_checkpoint(step);
            checkpoint.optimizer.master =
                model::make_initial_weights(checkpoint.config, static_cast<std::uint64_t>(step));
            store.save(checkpoint, 1.0 / static_cast<double>(step));
        }
    }

    std::string path(const std::string& name) const { return folder_.path(name); }

    ExportRequest request(DraftFormat format = DraftFormat::Zlab) const {
        ExportRequest request;
        request.source = path("run");
        request.format = format;
        request.output = path("out");
        return request;
    }

    /// Nothing but the run lies there: no half of an export.
    bool is_clean() const {
        return std::distance(fs::directory_iterator(path(".")), fs::directory_iterator()) == 1;
    }

  private:
    TemporaryFolder folder_;
};

void write_target(const std::string& folder, std::int64_t hidden_size) {
    fs::create_directories(folder);
    std::ofstream(folder + "/config.json")
        << R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 64, "num_hidden_layers": 4, )"
        << "\"hidden_size\": " << hidden_size << "}";
}

Error error_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return error;
    }
    FAIL("expected an error");
    return {ErrorKind::Internal, {}};
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// Changes the tensors of a drafter.
void edit_weights(const std::string& folder,
                  const std::function<void(std::vector<OwnedTensor>&)>& edit) {
    std::vector<OwnedTensor> tensors = target::testing::read_tensors(folder + "/model.safetensors");
    edit(tensors);
    target::testing::write_tensors(folder + "/model.safetensors", tensors);
}

void replace_text(const std::string& path, const std::string& from, const std::string& to) {
    std::string text = file_bytes(path);
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    std::ofstream(path, std::ios::binary) << text.replace(at, from.size(), to);
}

}  // namespace

TEST_SUITE("train.export") {
    TEST_CASE("a drafter is found by its run, its step, a link, and its own folder") {
        const Scene scene;
        for (const auto& [source, step] : std::vector<std::pair<std::string, std::string>>{
                 {"run", "step-000007"},
                 {"run/", "step-000007"},
                 {"run/latest", "step-000007"},
                 {"run/step-000003", "step-000003"},
                 {"run/step-000003/draft", "step-000003"},
                 {"run/step-000003/draft/", "step-000003"}}) {
            CAPTURE(source);
            ExportRequest request = scene.request();
            request.source = scene.path(source);
            request.output = scene.path("out-" + std::to_string(source.size()));
            request.check = true;
            const ExportResult result = export_draft(request);
            CHECK(result.comparison->num_weights == 14);
            CHECK(result.comparison->num_hidden_rows == 8);
            CHECK(file_bytes(request.output + "/model.safetensors") ==
                  file_bytes(scene.path("run/" + step + "/draft/model.safetensors")));
            CHECK(fs::equivalent(result.source.run_folder, scene.path("run")));
        }
        ExportRequest request = scene.request();
        request.step = 3;
        CHECK(contains(export_draft(request).source.draft_folder, "step-000003"));
    }

    TEST_CASE("a drafter on its own is exported, with the weights of any dtype rounded to bf16") {
        const Scene scene;
        fs::copy(scene.path("run/step-000007/draft"), scene.path("alone"));
        edit_weights(scene.path("alone"), [](std::vector<OwnedTensor>& tensors) {
            for (OwnedTensor& tensor : tensors) {
                if (tensor.name == "norm.weight") {
                    tensor.dtype = io::DType::F32;
                    tensor.data.assign(16 * 4, std::byte{0x3f});
                }
                tensor.name = "model." + tensor.name;
            }
        });
        ExportRequest request = scene.request(DraftFormat::Sglang);
        request.source = scene.path("alone");
        request.check = true;
        const ExportResult result = export_draft(request);
        CHECK(result.rounded_weights == 1);
        CHECK(result.source.run_folder.empty());
        CHECK(load_draft(request.output).config.hidden_size == 16);
        for (const OwnedTensor& tensor :
             target::testing::read_tensors(request.output + "/model.safetensors")) {
            CHECK((tensor.dtype == io::DType::BF16));
            CHECK_FALSE(tensor.name.starts_with("model."));
        }
    }

    TEST_CASE("every format passes its check; the speculators one names the target") {
        const Scene scene;
        write_target(scene.path("target"), 16);
        for (const DraftFormat format : model::draft_formats()) {
            CAPTURE(std::string(to_string(format)));
            ExportRequest request = scene.request(format);
            request.output = scene.path(std::string(to_string(format)));
            request.target = scene.path("target");
            request.check = true;
            const ExportResult result = export_draft(request);
            CHECK(result.num_weights == 14);
            CHECK(result.target == scene.path("target"));
            // It is what --init would start from.
            CHECK(load_draft(request.output)
                      .flat_fp32.equal(load_draft(scene.path("run/latest/draft")).flat_fp32));
        }
        const std::string path = scene.path("speculators") + "/config.json";
        const io::Json json = io::read_json_file(path);
        CHECK(contains(json.find("speculators_config")->dump(), scene.path("target")));
        CHECK(contains(json.find("speculators_config")->dump(), "Qwen3ForCausalLM"));
        ExportRequest request = scene.request(DraftFormat::Speculators);
        request.output = scene.path("other");
        CHECK(contains(error_of([&] { export_draft(request); }).what(), "--target"));
    }

    TEST_CASE("what is there already is refused and stays, files and folders alike") {
        const Scene scene;
        fs::create_directories(scene.path("out"));
        CHECK(contains(error_of([&] { export_draft(scene.request()); }).what(), "there already"));
        CHECK(fs::is_empty(scene.path("out")));
        fs::remove(scene.path("out"));
        std::ofstream(scene.path("out")) << "mine";
        CHECK((error_of([&] { export_draft(scene.request()); }).kind() == ErrorKind::Config));
        CHECK(file_bytes(scene.path("out")) == "mine");
    }

    TEST_CASE("says what is missing, and leaves nothing") {
        const Scene scene;
        const auto fails = [&](const std::function<void(ExportRequest&)>& change, ErrorKind kind) {
            ExportRequest request = scene.request();
            change(request);
            const Error error = error_of([&] { export_draft(request); });
            CHECK((error.kind() == kind));
            return std::string(error.what());
        };
        CHECK(contains(fails([&](auto& r) { r.source = scene.path("none"); }, ErrorKind::Config),
                       "no such folder"));
        CHECK(contains(fails([&](auto& r) { r.step = 5; }, ErrorKind::Config),
                       "no drafter of step 5, but of 3, 7"));
        CHECK(contains(fails(
                           [&](auto& r) {
                               r.source = scene.path("run/step-000003");
                               r.step = 3;
                           },
                           ErrorKind::Config),
                       "no folder of a run"));
        CHECK(contains(fails([&](auto& r) { r.source = scene.path("run/step-000003/state"); },
                             ErrorKind::Config),
                       "neither a run nor a checkpoint nor a drafter"));
        CHECK(scene.is_clean());
        write_target(scene.path("target"), 32);
        CHECK(contains(fails([&](auto& r) { r.target = scene.path("target"); }, ErrorKind::Config),
                       "hidden_size of the drafter is 16, but the target has 32"));
        fs::create_directories(scene.path("empty"));
        std::ofstream(scene.path("empty/config.toml")) << "[run]\ntarget = \"T\"\n";
        CHECK(contains(fails([&](auto& r) { r.source = scene.path("empty"); }, ErrorKind::Config),
                       "no checkpoint with a drafter"));
    }

    TEST_CASE("a damaged drafter is an error that names the other steps") {
        const Scene scene;
        edit_weights(scene.path("run/step-000007/draft"),
                     [](std::vector<OwnedTensor>& tensors) { tensors[3].data[1] ^= std::byte{1}; });
        Error error = error_of([&] { export_draft(scene.request()); });
        CHECK((error.kind() == ErrorKind::Data));
        CHECK(contains(error.what(), "model.safetensors"));
        CHECK(contains(error.what(), "steps 3"));
        fs::remove(scene.path("run/step-000007/draft/model.safetensors"));
        error = error_of([&] { export_draft(scene.request()); });
        CHECK((error.kind() == ErrorKind::Data));
        CHECK(scene.is_clean());
    }

    TEST_CASE("weights that are not finite are refused") {
        const Scene scene;
        fs::copy(scene.path("run/step-000007/draft"), scene.path("alone"));
        edit_weights(scene.path("alone"), [](std::vector<OwnedTensor>& tensors) {
            tensors[2].data[0] = std::byte{0xc0};  // bf16 0x7fc0
            tensors[2].data[1] = std::byte{0x7f};
        });
        ExportRequest request = scene.request();
        request.source = scene.path("alone");
        const Error error = error_of([&] { export_draft(request); });
        CHECK((error.kind() == ErrorKind::Data));
        CHECK(contains(error.what(), "1 of "));
        CHECK(contains(error.what(), "not finite"));
        CHECK_FALSE(fs::exists(request.output));
    }

    TEST_CASE("the comparison finds a changed weight and a changed key") {
        const Scene scene;
        export_draft(scene.request());
        const std::string draft = scene.path("run/latest/draft");
        const std::string out = scene.path("out");
        CHECK(compare_drafts(draft, out).differences.empty());

        edit_weights(out, [](std::vector<OwnedTensor>& tensors) {
            for (OwnedTensor& tensor : tensors) {
                if (tensor.name == "layers.0.mlp.up_proj.weight") {
                    tensor.data[20] ^= std::byte{1};
                }
            }
        });
        std::vector<std::string> differences = compare_drafts(draft, out).differences;
        REQUIRE(differences.size() == 2);
        CHECK(differences[0] == "1 of 512 values of layers.0.mlp.up_proj.weight differ");
        CHECK(contains(differences[1], "hidden rows"));

        fs::remove_all(out);
        export_draft(scene.request());
        // The same weights, wired otherwise: only the rows and the key tell.
        replace_text(out + "/config.json", "\"rope_theta\": 1000000", "\"rope_theta\": 10000");
        differences = compare_drafts(draft, out).differences;
        REQUIRE(differences.size() == 2);
        CHECK(contains(differences[0], "rope_theta is 1000000"));
        CHECK(contains(differences[1], "hidden rows"));
    }

    TEST_CASE("a run that starts from an export goes as one that starts from the draft") {
        const TemporaryFolder folder;
        REQUIRE(run(tiny_request(folder.path("a"), 2)) == 0);
        const std::string log = file_bytes(folder.path("a") + "/console.log");
        CHECK(contains(log, "--speculative-num-draft-tokens 8"));
        CHECK(contains(log, "\"num_speculative_tokens\": 7"));
        CHECK(contains(log, "vllm serve test/golden/targets/T1"));
        ExportRequest request;
        request.source = folder.path("a");
        request.format = DraftFormat::Speculators;
        request.output = folder.path("speculators");
        CHECK(export_draft(request).target == "test/golden/targets/T1");  // from the run
        const auto first_losses = [&](const std::string& name, const std::string& init) {
            TrainRequest train = tiny_request(folder.path(name), 2);
            train.settings.run.init = init;
            REQUIRE(run(train) == 0);
            return losses(folder.path(name));
        };
        CHECK(first_losses("b", folder.path("a") + "/latest/draft") ==
              first_losses("c", folder.path("speculators")));
        // With what speculators keeps of the target besides.
        edit_weights(folder.path("speculators"), [](std::vector<OwnedTensor>& tensors) {
            OwnedTensor embed = tensors.front();
            embed.name = "embed_tokens.weight";
            tensors.push_back(embed);
        });
        CHECK(load_draft(folder.path("speculators")).config.num_target_layers == 6);
        replace_text(folder.path("speculators") + "/config.json", "speculators_model_type", "x");
        CHECK((error_of([&] { load_draft(folder.path("speculators")); }).kind() ==
               ErrorKind::Config));
    }
}

}  // namespace dflash::train
