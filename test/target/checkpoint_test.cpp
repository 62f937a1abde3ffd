// SPDX-License-Identifier: Apache-2.0
#include "model_folder.hpp"

#include <dflash/core/error.hpp>
#include <dflash/target/target_model.hpp>

#include <ATen/ATen.h>
#include <algorithm>
#include <cstring>
#include <doctest/doctest.h>
#include <filesystem>
#include <string>
#include <vector>

namespace dflash::target {
namespace {

namespace fs = std::filesystem;
using testing::copy_target;
using testing::error_of;
using testing::LogCapture;
using testing::OwnedTensor;
using testing::read_text;
using testing::replaced;
using testing::TempFolder;
using testing::tensor_named;

constexpr const char* kLlama = "test/golden/targets/T3";
constexpr const char* kTied = "test/golden/targets/T1b";
constexpr const char* kSharded = "test/golden/targets/T1";

LoadOptions all_layers() {
    return {.device = at::kCPU, .dtype = at::kFloat, .num_layers = 0, .with_head = true};
}

void copy_folder(const std::string& from, const std::string& to) {
    fs::copy(from, to, fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(to)) {
        fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
    }
}

}  // namespace

TEST_SUITE("target.checkpoint") {
    TEST_CASE("load_target: loads layers up to the one asked for, from shards too") {
        const auto whole = load_target(kSharded, all_layers());
        CHECK(whole->weight_bytes() == 4 * 398528);
        CHECK((whole->embed_VH().sizes() == at::IntArrayRef({512, 64})));
        CHECK(!whole->head_VH().is_same(whole->embed_VH()));
        const auto two = load_target(
            kSharded,
            {.device = at::kCPU, .dtype = at::kBFloat16, .num_layers = 2, .with_head = false});
        CHECK(two->weight_bytes() == 2 * (whole->config().num_parameters(2, false) + 32768));
        CHECK((two->embed_VH().scalar_type() == at::kBFloat16));
    }

    TEST_CASE("load_target: a tied head is the embedding itself, and load_ends agrees") {
        const auto tied = load_target(kTied, all_layers());
        CHECK(tied->head_VH().is_same(tied->embed_VH()));
        CHECK(tied->weight_bytes() == 4 * 199296);
        const Ends tied_ends = load_ends(kTied, all_layers());
        CHECK(tied_ends.head_VH.is_same(tied_ends.embed_VH));
        CHECK(at::equal(tied_ends.embed_VH, tied->embed_VH()));
        const auto untied = load_target(kLlama, all_layers());
        const Ends ends = load_ends(kLlama, all_layers());
        CHECK(at::equal(ends.embed_VH, untied->embed_VH()));
        CHECK(at::equal(ends.head_VH, untied->head_VH()));
        CHECK(!at::equal(ends.head_VH, ends.embed_VH));
    }

    TEST_CASE("load_target: a stored copy of a tied head is ignored if equal, used if not") {
        const TempFolder folder;
        const auto add_head = [](std::vector<OwnedTensor>& tensors, bool change) {
            OwnedTensor head = tensor_named(tensors, "model.embed_tokens.weight");
            head.name = "lm_head.weight";
            head.data[0] ^= change ? std::byte{1} : std::byte{0};
            tensors.push_back(head);
        };
        {
            const LogCapture log;
            copy_target(kTied, folder.string() + "/equal", [&](auto& t) { add_head(t, false); });
            const auto model = load_target(folder.string() + "/equal", all_layers());
            CHECK(model->head_VH().is_same(model->embed_VH()));
            CHECK(log.text().empty());
        }
        {
            const LogCapture log;
            copy_target(kTied, folder.string() + "/other", [&](auto& t) { add_head(t, true); });
            const auto model = load_target(folder.string() + "/other", all_layers());
            CHECK(!model->head_VH().is_same(model->embed_VH()));
            CHECK(!at::equal(model->head_VH(), model->embed_VH()));
            CHECK(log.text().find("lm_head.weight") != std::string::npos);
            const Ends ends = load_ends(folder.string() + "/other", all_layers());
            CHECK(at::equal(ends.head_VH, model->head_VH()));
        }
    }

    TEST_CASE("load_target: without a head and without a word about it the embedding serves") {
        const TempFolder folder;
        copy_target(kTied, folder.string() + "/m", [](auto&) {});
        const std::string config = folder.string() + "/m/config.json";
        const std::string text = read_text(config);
        folder.write("m/config.json", replaced(text, "  \"tie_word_embeddings\": true,\n", ""));
        const LogCapture log;
        const auto model = load_target(folder.string() + "/m", all_layers());
        CHECK(model->head_VH().is_same(model->embed_VH()));
        CHECK(log.text().find("lm_head.weight is not stored") != std::string::npos);
    }

    TEST_CASE("load_target: stored buffers of rotary frequencies are not taken for weights") {
        const TempFolder folder;
        copy_target(kLlama, folder.string() + "/m", [](std::vector<OwnedTensor>& tensors) {
            tensors.push_back({.name = "model.layers.0.self_attn.rotary_emb.inv_freq",
                               .dtype = io::DType::F32,
                               .shape = {1},
                               .data = std::vector<std::byte>(4)});
        });
        const LogCapture log;
        load_target(folder.string() + "/m", all_layers());
        CHECK(log.text().find("1 stored buffers") != std::string::npos);
    }

    TEST_CASE("load_target: a weight that is not finite is a data error that names it") {
        const TempFolder folder;
        copy_target(kLlama, folder.string() + "/m", [](std::vector<OwnedTensor>& tensors) {
            // All bits set is NaN in every floating dtype.
            OwnedTensor& weight = tensor_named(tensors, "model.layers.1.mlp.down_proj.weight");
            std::fill_n(weight.data.begin() + 8, 4, std::byte{0xFF});
        });
        try {
            load_target(folder.string() + "/m", all_layers());
            FAIL("loaded");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Data);
            CHECK(std::string(error.what()).find("layers.1.mlp.down_proj") != std::string::npos);
        }
    }

    TEST_CASE("load_target: weights that do not fit the configuration are data errors") {
        struct Case {
            const char* name;
            std::function<void(std::vector<OwnedTensor>&)> change;
            std::vector<std::string> expected;
        };

        const auto rename = [](const char* from, const char* to) {
            return [from, to](std::vector<OwnedTensor>& tensors) {
                tensor_named(tensors, from).name = to;
            };
        };
        const auto drop = [](const char* name) {
            return [name](std::vector<OwnedTensor>& tensors) {
                std::erase_if(tensors, [&](const OwnedTensor& t) { return t.name == name; });
            };
        };
        const std::vector<Case> cases = {
            // Layer 3 is judged although only layer 0 is asked for.
            {"missing",
             drop("model.layers.3.mlp.up_proj.weight"),
             {"missing", "model.layers.3.mlp.up_proj.weight", "[160, 64]"}},
            {"missing head", drop("lm_head.weight"), {"missing", "lm_head.weight", "[512, 64]"}},
            {"misspelt",
             rename("model.layers.2.mlp.up_proj.weight", "model.layers.2.mlp.upp_proj.weight"),
             {"missing", "up_proj", "nearest name", "model.layers.2.mlp.upp_proj.weight"}},
            {"extra bias",
             [](std::vector<OwnedTensor>& tensors) {
                 OwnedTensor bias = tensor_named(tensors, "model.norm.weight");
                 bias.name = "model.layers.1.self_attn.q_proj.bias";
                 tensors.push_back(bias);
             },
             {"does not have", "model.layers.1.self_attn.q_proj.bias", "[64] BF16"}},
            {"wrong shape",
             [](std::vector<OwnedTensor>& tensors) {
                 tensor_named(tensors, "model.layers.1.self_attn.k_proj.weight").shape = {64, 32};
             },
             {"model.layers.1.self_attn.k_proj.weight", "[64, 32]", "expected [32, 64]"}},
            {"wrong number of dimensions",
             [](std::vector<OwnedTensor>& tensors) {
                 tensor_named(tensors, "model.norm.weight").shape = {64, 1};
             },
             {"model.norm.weight", "[64, 1]", "expected [64]"}},
            {"wrong dtype",
             [](std::vector<OwnedTensor>& tensors) {
                 tensor_named(tensors, "model.norm.weight").dtype = io::DType::I16;
             },
             {"model.norm.weight", "I16", "BF16"}},
        };
        for (const Case& c : cases) {
            CAPTURE(c.name);
            const TempFolder folder;
            copy_target(kLlama, folder.string() + "/m", c.change);
            for (const bool ends_only : {false, true}) {
                CAPTURE(ends_only);
                const auto error = error_of([&] {
                    if (ends_only) {
                        load_ends(folder.string() + "/m", all_layers());
                    } else {
                        load_target(folder.string() + "/m",
                                    {.device = at::kCPU,
                                     .dtype = at::kFloat,
                                     .num_layers = 1,
                                     .with_head = false});
                    }
                });
                REQUIRE(error);
                CHECK(error->kind() == ErrorKind::Data);
                const std::string message = error->what();
                CAPTURE(message);
                CHECK(message.find(folder.string()) != std::string::npos);
                for (const std::string& part : c.expected) {
                    CAPTURE(part);
                    CHECK(message.find(part) != std::string::npos);
                }
            }
        }
    }

    TEST_CASE("load_target: more layers in the file than in the configuration are named") {
        const TempFolder folder;
        copy_target(kLlama, folder.string() + "/m", [](auto&) {});
        folder.write("m/config.json",
                     replaced(read_text(fs::path(kLlama) / "config.json"),
                              "\"num_hidden_layers\": 4",
                              "\"num_hidden_layers\": 3"));
        const auto error = error_of([&] { load_target(folder.string() + "/m", all_layers()); });
        REQUIRE(error);
        CHECK(error->kind() == ErrorKind::Data);
        const std::string message = error->what();
        CAPTURE(message);
        CHECK(message.find("9 weights") != std::string::npos);
        CHECK(message.find("model.layers.3.") != std::string::npos);
        CHECK(message.find("3 layers") != std::string::npos);
    }

    TEST_CASE("load_target: a truncated or missing shard is a data error that names the file") {
        const std::string shard = "model-00002-of-00002.safetensors";
        const TempFolder folder;
        const std::string model = folder.string() + "/m";
        copy_folder(kSharded, model);
        fs::resize_file(model + "/" + shard, fs::file_size(model + "/" + shard) / 2);
        const auto truncated = error_of([&] { load_target(model, all_layers()); });
        REQUIRE(truncated);
        CHECK(truncated->kind() == ErrorKind::Data);
        CHECK(std::string(truncated->what()).find(shard) != std::string::npos);
        fs::remove(model + "/" + shard);
        const auto missing = error_of([&] { load_target(model, all_layers()); });
        REQUIRE(missing);
        CHECK(std::string(missing->what()).find(shard) != std::string::npos);
    }

    TEST_CASE("load_target: a folder without weights is a configuration error") {
        const TempFolder folder;
        folder.write("config.json", read_text(fs::path(kLlama) / "config.json"));
        const auto error = error_of([&] { load_target(folder.string(), all_layers()); });
        REQUIRE(error);
        CHECK(error->kind() == ErrorKind::Config);
    }
}

}  // namespace dflash::target
