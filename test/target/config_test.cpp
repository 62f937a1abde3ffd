// SPDX-License-Identifier: Apache-2.0
#include "model_folder.hpp"

#include <dflash/target/config.hpp>

#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace dflash::target {
namespace {

using testing::error_of;
using testing::LogCapture;
using testing::read_text;
using testing::replaced;
using testing::TempFolder;

TargetConfig read_text_as_config(const std::string& text) {
    const TempFolder folder;
    folder.write("config.json", text);
    return TargetConfig::read(folder.string());
}

std::string with_key(const std::string& config, const std::string& key_and_value) {
    return replaced(
        config, "{\n  \"architectures\"", "{\n  " + key_and_value + ",\n  \"architectures\"");
}

}  // namespace

TEST_SUITE("target.config") {
    TEST_CASE("config: reads the old spelling of Qwen3") {
        const TargetConfig config = TargetConfig::read("test/golden/targets/T1");
        CHECK(config.family == Family::Qwen3);
        CHECK(config.architecture == "Qwen3ForCausalLM");
        CHECK(config.model_type == "qwen3");
        CHECK(config.hidden_size == 64);
        CHECK(config.intermediate_size == 160);
        CHECK(config.num_layers == 6);
        CHECK(config.num_heads == 4);
        CHECK(config.num_kv_heads == 2);
        CHECK(config.head_dim == 32);
        CHECK(config.vocab_size == 512);
        CHECK(config.max_position_embeddings == 1024);
        CHECK(config.rms_norm_eps == 1e-6);
        CHECK(!config.tied);
        CHECK(!config.tied_by_default);
        CHECK(config.rope.kind == RopeKind::Default);
        CHECK(config.rope.theta == 1e6);
        CHECK(config.bos_token_id == 0);
        CHECK(config.eos_token_ids == std::vector<std::int64_t>{1});
        CHECK(config.dtype == "float32");
        CHECK(config.num_parameters(6, true) == 398528);
    }

    TEST_CASE("config: reads yarn, tied embeddings and llama3") {
        const TargetConfig yarn = TargetConfig::read("test/golden/targets/T1b");
        CHECK(yarn.tied);
        CHECK(yarn.rope.kind == RopeKind::Yarn);
        CHECK(yarn.rope.factor == 4);
        CHECK(yarn.rope.original_max_position == 64);
        CHECK(yarn.num_parameters(3, true) == 199296);
        const TargetConfig llama = TargetConfig::read("test/golden/targets/T3");
        CHECK(llama.family == Family::Llama);
        CHECK(llama.head_dim == 16);  // from hidden size and heads
        CHECK(llama.rope.kind == RopeKind::Llama3);
        CHECK(llama.rope.low_freq_factor == 1);
        CHECK(llama.rope.high_freq_factor == 4);
        CHECK(llama.num_parameters(4, true) == 238144);
    }

    TEST_CASE("config: the new spelling means the same as the old one") {
        const std::string old_text = read_text("test/golden/targets/T1b/config.json");
        std::string text = replaced(old_text, "  \"rope_theta\": 1000000.0,\n  \"max", "  \"max");
        text = replaced(text, "\"rope_scaling\"", "\"rope_parameters\"");
        text = replaced(text, "\"torch_dtype\"", "\"dtype\"");
        const TargetConfig config = read_text_as_config(text);
        CHECK(config.rope.kind == RopeKind::Yarn);
        CHECK(config.rope.theta == 1e6);
        CHECK(config.rope.factor == 4);
        CHECK(config.rope.original_max_position == 64);
        CHECK(config.dtype == "bfloat16");
    }

    TEST_CASE("config: parameters of published models") {
        struct Case {
            const char* name;
            TargetConfig config;
            std::int64_t parameters;
        };

        const auto qwen3 =
            [](std::int64_t h, std::int64_t l, std::int64_t heads, std::int64_t inner, bool tied) {
                TargetConfig config;
                config.family = Family::Qwen3;
                config.hidden_size = h;
                config.num_layers = l;
                config.num_heads = heads;
                config.num_kv_heads = 8;
                config.head_dim = 128;
                config.intermediate_size = inner;
                config.vocab_size = 151936;
                config.tied = tied;
                return config;
            };
        TargetConfig llama = qwen3(4096, 32, 32, 14336, false);
        llama.family = Family::Llama;
        llama.vocab_size = 128256;
        const std::vector<Case> cases = {
            {"Qwen3-0.6B", qwen3(1024, 28, 16, 3072, true), 596049920},
            {"Qwen3-4B", qwen3(2560, 36, 32, 9728, true), 4022468096},
            {"Qwen3-8B", qwen3(4096, 36, 32, 12288, false), 8190735360},
            {"Qwen3-32B", qwen3(5120, 64, 64, 25600, false), 32762123264},
            {"Llama-3.1-8B", llama, 8030261248},
        };
        for (const Case& c : cases) {
            CAPTURE(c.name);
            CHECK(c.config.num_parameters(c.config.num_layers, true) == c.parameters);
        }
    }

    TEST_CASE("config: a folder that is not there or has no config.json is a configuration error") {
        const auto missing = error_of([] { TargetConfig::read("test/golden/targets/none"); });
        REQUIRE(missing);
        CHECK(missing->kind() == ErrorKind::Config);
        CHECK(missing->parts().where == "test/golden/targets/none");
        const TempFolder empty;
        const auto no_config = error_of([&] { TargetConfig::read(empty.string()); });
        REQUIRE(no_config);
        CHECK(no_config->kind() == ErrorKind::Config);
        CHECK(no_config->parts().what.find("no config.json") != std::string::npos);
    }

    TEST_CASE("config: what is not supported is refused by name") {
        const std::string qwen = read_text("test/golden/targets/T1/config.json");
        const std::string yarn = read_text("test/golden/targets/T1b/config.json");
        const std::string llama = read_text("test/golden/targets/T3/config.json");

        struct Case {
            std::string text;
            std::vector<std::string> expected;  // parts of the message
        };

        const std::vector<Case> cases = {
            {replaced(qwen, "\"Qwen3ForCausalLM\"", "\"Qwen3MoeForCausalLM\""),
             {"Qwen3MoeForCausalLM", "LlamaForCausalLM, Qwen3ForCausalLM"}},
            {replaced(qwen, "\"model_type\": \"qwen3\"", "\"model_type\": \"qwen3_moe\""),
             {"model_type", "qwen3_moe"}},
            {replaced(replaced(qwen, "\"architectures\"", "\"archs\""), "\"qwen3\"", "\"gpt2\""),
             {"unsupported", "gpt2"}},
            {replaced(qwen, "\"attention_bias\": false", "\"attention_bias\": true"),
             {"attention_bias"}},
            {replaced(llama, "\"mlp_bias\": false", "\"mlp_bias\": true"), {"mlp_bias"}},
            {with_key(llama, "\"rope_interleaved\": true"), {"rope_interleaved"}},
            {replaced(qwen, "\"silu\"", "\"gelu\""), {"hidden_act", "gelu"}},
            {with_key(qwen, "\"quantization_config\": {\"quant_method\": \"fp8\"}"),
             {"quantization_config", "fp8"}},
            {with_key(qwen,
                      "\"use_sliding_window\": true, \"sliding_window\": 4096, "
                      "\"max_window_layers\": 4"),
             {"sliding_window", "4096", "layers 4 to 5"}},
            {with_key(qwen,
                      "\"layer_types\": [\"full_attention\", \"full_attention\", "
                      "\"sliding_attention\", \"full_attention\", \"full_attention\", "
                      "\"full_attention\"]"),
             {"layer_types[2]", "sliding_attention"}},
            {with_key(qwen, "\"layer_types\": [\"full_attention\"]"), {"layer_types", "6"}},
            {with_key(qwen, "\"partial_rotary_factor\": 0.5"), {"partial_rotary_factor", "0.5"}},
            {replaced(yarn, "\"yarn\"", "\"longrope\""), {"rope_type", "longrope", "llama3"}},
            {replaced(yarn, "\"yarn\"", "\"dynamic\""), {"rope_type", "dynamic"}},
            {replaced(yarn, "\"factor\": 4.0", "\"long_factor\": [1, 2]"), {"long_factor"}},
            {replaced(yarn, "    \"factor\": 4.0,\n", ""), {"factor"}},
            {replaced(yarn, "64,\n    \"rope_theta\": 1000000.0", "64,\n    \"rope_theta\": 5e5"),
             {"rope_theta", "1000000", "500000"}},
            {replaced(llama, "\"low_freq_factor\": 1.0", "\"low_freq_factor\": 8.0"),
             {"high_freq_factor"}},
            {replaced(qwen, "\"hidden_size\": 64", "\"hidden_size\": 0"), {"hidden_size", "got 0"}},
            {replaced(qwen, "\"hidden_size\": 64", "\"hidden_size\": \"64\""), {"hidden_size"}},
            {replaced(qwen, "  \"hidden_size\": 64,\n", ""), {"hidden_size"}},
            {replaced(qwen, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"),
             {"num_attention_heads", "num_key_value_heads (3)"}},
            {replaced(qwen, "\"head_dim\": 32", "\"head_dim\": 33"), {"head_dim", "33"}},
            {qwen.substr(0, 100), {"config.json"}},
            {"[1, 2]", {"a list", "an object"}},
        };
        for (const Case& c : cases) {
            CAPTURE(c.text);
            const auto error = error_of([&] { read_text_as_config(c.text); });
            REQUIRE(error);
            CHECK(error->kind() == ErrorKind::Config);
            const std::string message = error->what();
            CAPTURE(message);
            CHECK(message.find("config.json") != std::string::npos);
            for (const std::string& part : c.expected) {
                CAPTURE(part);
                CHECK(message.find(part) != std::string::npos);
            }
        }
    }

    TEST_CASE("config: windows that are switched off and nulls are no obstacle") {
        const std::string qwen = read_text("test/golden/targets/T1/config.json");
        for (const char* keys :
             {"\"use_sliding_window\": false, \"sliding_window\": 4096, \"max_window_layers\": 4",
              "\"use_sliding_window\": true, \"sliding_window\": 4096, \"max_window_layers\": 6",
              "\"sliding_window\": null, \"quantization_config\": null, \"rope_scaling\": null",
              "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1000000.0}"}) {
            CAPTURE(keys);
            const LogCapture log;
            CHECK(read_text_as_config(with_key(qwen, keys)).rope.theta == 1e6);
            CHECK(log.text().empty());
        }
    }

    TEST_CASE("config: an unknown key is named in a warning") {
        const LogCapture log;
        read_text_as_config(
            with_key(read_text("test/golden/targets/T1/config.json"), "\"logit_scale\": 0.5"));
        CHECK(log.text().find("logit_scale") != std::string::npos);
    }
}

}  // namespace dflash::target
