// SPDX-License-Identifier: Apache-2.0
#include "reference.hpp"

#include <dflash/core/error.hpp>
#include <dflash/model/draft_format.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace dflash::model {
namespace {

const Verifier kVerifier{"org/Target", {"Qwen3ForCausalLM"}};

DraftConfig drafter(std::vector<LayerType> layers, std::optional<bool> is_causal = {}) {
    const bool slides = std::count(layers.begin(), layers.end(), LayerType::Sliding) > 0;
    DraftConfig config = small_config(std::move(layers), /*block_size=*/8);
    config.sliding_window = slides ? config.sliding_window : 0;
    config.num_target_layers = 12;
    config.target_layer_ids = {1, 5, 9};
    config.is_causal = is_causal;
    return config;
}

DraftConfig full(std::optional<bool> is_causal = {}) {
    return drafter({LayerType::Full, LayerType::Full}, is_causal);
}

DraftConfig sliding(std::optional<bool> is_causal = {}) {
    return drafter({LayerType::Sliding, LayerType::Sliding}, is_causal);
}

DraftConfig mixed(std::optional<bool> is_causal = {}) {
    return drafter({LayerType::Sliding, LayerType::Full}, is_causal);
}

const io::Json& member(const io::Json& json, const std::string& key) {
    const io::Json* value = json.find(key);
    REQUIRE_MESSAGE(value != nullptr, key);
    return *value;
}

std::string text(const io::Json& json, const std::string& key) {
    const io::Json* value = json.find(key);
    return value == nullptr ? "absent" : value->dump();
}

/// What a config means, whichever way it says it.
DraftConfig meaning(DraftConfig config) {
    config.is_causal = stated_causality(config);
    return config;
}

std::string refusal_text(DraftFormat format, const DraftConfig& config) {
    const std::optional<Refusal> refused = refusal(format, config);
    return refused ? refused->reason : "served";
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// As speculators writes one (its keys, and those of Domino that stand in every config).
io::Json of_speculators() {
    return io::Json::parse(R"({
        "architectures": ["DFlashSpeculator"],
        "auto_map": {"": "config.DFlashSpeculatorConfig"},
        "aux_hidden_state_layer_ids": [2, 10, 18], "block_size": 8, "draft_vocab_size": 32000,
        "dtype": "bfloat16", "emb_dim": 256, "gru_hidden_dim": 1024, "mask_token_id": 151669,
        "projector_type": "dflash", "pure_draft_prefix_len": 1, "sample_from_anchor": false,
        "shift_label": false, "sliding_window_non_causal": false,
        "speculators_config": {"algorithm": "dflash", "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
            "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "Qwen/Qwen3-8B"}},
        "speculators_model_type": "dflash", "speculators_version": "0.9.0",
        "target_hidden_size": null,
        "transformer_layer_config": {
            "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128,
            "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "max_position_embeddings": 40960, "model_type": "qwen3", "num_attention_heads": 32,
            "num_hidden_layers": 3, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
            "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
            "sliding_window": 2048, "use_sliding_window": true, "vocab_size": 151936}})",
                           "speculators");
}

io::Json& inside(io::Json& json, const std::string& key) {
    for (auto& [name, value] : json.members()) {
        if (name == key) {
            return value;
        }
    }
    FAIL("no " << key);
    return json;
}

}  // namespace

TEST_SUITE("model.draft_format") {
    TEST_CASE("a format is found by its name, and an unknown one gets the nearest") {
        for (const DraftFormat format : draft_formats()) {
            CHECK((parse_draft_format(to_string(format)) == format));
        }
        try {
            parse_draft_format("vlm");
            FAIL("expected an error");
        } catch (const Error& error) {
            CHECK((error.kind() == ErrorKind::Config));
            CHECK(contains(error.what(), "zlab, sglang, vllm, speculators"));
            CHECK(contains(error.what(), "Did you mean vllm"));
        }
    }

    TEST_CASE("every format reads back as the same drafter, or refuses it") {
        int written = 0;
        for (const std::optional<bool> causal : {std::optional<bool>{}, {false}, {true}}) {
            for (const DraftConfig& config : {full(causal), sliding(causal), mixed(causal)}) {
                for (const DraftFormat format : draft_formats()) {
                    CAPTURE(std::string(to_string(format)));
                    CAPTURE(config.layer_types.size());
                    if (refusal(format, config)) {
                        CHECK((format == DraftFormat::Speculators));
                        continue;
                    }
                    const io::Json json = config_json(format, config, kVerifier);
                    const DraftConfig read = DraftConfig::from_json(
                        io::Json::parse(json.dump_pretty(), "exported"), "exported");
                    CHECK((meaning(read) == meaning(config)));
                    ++written;
                }
            }
        }
        CHECK(written == 36 - 3);
    }

    TEST_CASE("block size, mask token and layers stand where each reader looks") {
        for (const DraftFormat format :
             {DraftFormat::Zlab, DraftFormat::Sglang, DraftFormat::Vllm}) {
            const io::Json json = config_json(format, full(), kVerifier);
            const io::Json& nested = member(json, "dflash_config");
            CHECK(text(json, "block_size") == "8");
            CHECK(text(nested, "block_size") == "8");
            CHECK(text(nested, "mask_token_id") == std::to_string(full().mask_token_id));
            CHECK(text(nested, "target_layer_ids") == "[1, 5, 9]");
            CHECK(text(json, "num_target_layers") == "12");
            CHECK(text(json, "architectures") == R"(["DFlashDraftModel"])");
            CHECK(text(json, "dtype") == "\"bfloat16\"");
        }
        // One higher: vLLM and speculators count the embedding's output as 0.
        const io::Json vllm = config_json(DraftFormat::Vllm, full(), kVerifier);
        CHECK(text(vllm, "eagle_aux_hidden_state_layer_ids") == "[2, 6, 10]");
        const io::Json json = config_json(DraftFormat::Speculators, full(), kVerifier);
        CHECK(text(json, "aux_hidden_state_layer_ids") == "[2, 6, 10]");
        CHECK(text(json, "block_size") == "8");
        CHECK(text(json, "mask_token_id") == std::to_string(full().mask_token_id));
        CHECK(text(json, "draft_vocab_size") == "40");
        CHECK(text(json, "speculators_model_type") == "\"dflash\"");
        const io::Json& config = member(json, "speculators_config");
        CHECK(text(member(config, "verifier"), "name_or_path") == "\"org/Target\"");
        CHECK(text(member(config, "verifier"), "architectures") == R"(["Qwen3ForCausalLM"])");
        CHECK(text(member(config, "proposal_methods").items().front(), "speculative_tokens") ==
              "7");
        const io::Json& transformer = member(json, "transformer_layer_config");
        CHECK(text(transformer, "model_type") == "\"qwen3\"");
        CHECK(text(transformer, "num_hidden_layers") == "2");
        for (const char* key : {"architectures", "block_size", "dflash_config", "is_causal"}) {
            CHECK(transformer.find(key) == nullptr);
        }
    }

    TEST_CASE("causality is said where it is not the default, and in each reader's words") {
        struct Case {
            DraftConfig config;
            const char* top_level;  // is_causal
            const char* vllm;       // dflash_config.causal
            const char* non_causal;
        };

        const std::vector<Case> cases{
            {full(), "absent", "false", "true"},
            {full(false), "absent", "false", "true"},
            {full(true), "true", "true", "refused"},
            {sliding(), "absent", "true", "false"},
            {sliding(true), "absent", "true", "false"},
            {sliding(false), "false", "false", "true"},
            {mixed(), "absent", "absent", "refused"},
            {mixed(false), "false", "false", "true"},
            {mixed(true), "true", "true", "refused"},
        };
        for (const Case& c : cases) {
            CAPTURE(config_json(DraftFormat::Zlab, c.config, kVerifier).dump());
            for (const DraftFormat format :
                 {DraftFormat::Zlab, DraftFormat::Sglang, DraftFormat::Vllm}) {
                CHECK(text(config_json(format, c.config, kVerifier), "is_causal") == c.top_level);
            }
            const io::Json vllm = config_json(DraftFormat::Vllm, c.config, kVerifier);
            CHECK(text(member(vllm, "dflash_config"), "causal") == c.vllm);
            if (refusal(DraftFormat::Speculators, c.config)) {
                CHECK(std::string(c.non_causal) == "refused");
            } else {
                CHECK(text(config_json(DraftFormat::Speculators, c.config, kVerifier),
                           "sliding_window_non_causal") == c.non_causal);
            }
        }
    }

    TEST_CASE("refuses what a server is known not to serve, with the reason and what to do") {
        DraftConfig last = full();
        last.target_layer_ids = {1, 11};
        CHECK(contains(refusal_text(DraftFormat::Sglang, last), "last layer, 11"));
        CHECK(contains(refusal_text(DraftFormat::Speculators, last), "last layer, 11"));
        CHECK(refusal_text(DraftFormat::Vllm, last) == "served");
        CHECK(refusal_text(DraftFormat::Zlab, last) == "served");
        CHECK(contains(refusal_text(DraftFormat::Speculators, mixed()),
                       "vLLM would all make causal"));
        CHECK(contains(refusal_text(DraftFormat::Speculators, full(true)), "cannot say"));
        for (const DraftFormat format : draft_formats()) {
            DraftConfig unknown = full();
            unknown.num_target_layers = 0;
            CHECK(contains(refusal_text(format, unknown), "how many layers the target has"));
            CHECK_FALSE(refusal(format, unknown)->hint.empty());
        }
    }

    TEST_CASE("prints commands that count draft tokens as each server does") {
        const auto commands =
            serve_commands(DraftFormat::Zlab, full(), "Qwen/Qwen3-8B", "runs/a b");
        REQUIRE(commands.size() == 2);
        CHECK(commands[0].command ==
              "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --speculative-algorithm "
              "DFLASH --speculative-draft-model-path 'runs/a b' --speculative-num-draft-tokens 8");
        CHECK(commands[1].command ==
              R"(vllm serve Qwen/Qwen3-8B --speculative-config '{"method": "dflash", "model": )"
              R"("runs/a b", "num_speculative_tokens": 7}')");
        CHECK(commands[0].note.empty());
        CHECK(commands[1].note.empty());

        const auto hybrid = serve_commands(DraftFormat::Vllm, mixed(), "", "d");
        REQUIRE(hybrid.size() == 1);
        CHECK(hybrid[0].command.starts_with("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve TARGET "));
        CHECK(serve_commands(DraftFormat::Vllm, sliding(), "T", "d")[0].command.starts_with(
            "vllm serve T "));
        CHECK(contains(serve_commands(DraftFormat::Sglang, sliding(false), "T", "d")[0].note,
                       "is_causal"));

        DraftConfig last = full();
        last.target_layer_ids = {11};
        const auto half = serve_commands(DraftFormat::Zlab, last, "T", "d");
        CHECK(half[0].command.empty());
        CHECK(
            contains(to_line(half[0]), "SGLang cannot serve it: it taps the target's last layer"));
        CHECK_FALSE(half[1].command.empty());
    }

    TEST_CASE("reads a config of speculators: ids one lower, flags as its trainer means them") {
        const DraftConfig config = DraftConfig::from_json(of_speculators(), "config.json");
        CHECK(config.target_layer_ids == std::vector<std::int64_t>{1, 9, 17});
        CHECK(config.mask_token_id == 151669);
        CHECK(config.block_size == 8);
        CHECK(config.vocab_size == 151936);
        CHECK(config.sliding_window == 2048);
        CHECK(config.rope_theta == 1e6);
        CHECK(config.num_target_layers == 0);
        CHECK(config.causal(0));
        CHECK_FALSE(config.causal(2));
        io::Json json = of_speculators();
        json.set("sliding_window_non_causal", io::Json::boolean(true));
        CHECK_FALSE(DraftConfig::from_json(json, "config.json").causal(0));
        json = of_speculators();
        json.set("block_size", io::Json());
        CHECK(DraftConfig::from_json(json, "config.json").block_size == 8);
    }

    TEST_CASE("refuses what of speculators is no plain drafter, by name") {
        struct Case {
            const char* key;
            io::Json value;
            bool nested;
            const char* message;
        };

        const std::vector<Case> cases{
            {"speculators_model_type", io::Json::string("eagle3"), false, "eagle3"},
            {"projector_type", io::Json::string("domino"), false, "domino"},
            {"sample_from_anchor", io::Json::boolean(true), false, "sample_from_anchor"},
            {"shift_label", io::Json::boolean(true), false, "shift_label"},
            {"target_hidden_size", io::Json::integer(5120), false, "hidden_size = 4096"},
            {"mask_token_id", io::Json(), false, "mask_token_id"},
            {"aux_hidden_state_layer_ids", io::Json(), false, "aux_hidden_state_layer_ids"},
            {"aux_hidden_state_layer_ids",
             io::Json::array({io::Json::integer(0)}),
             false,
             "id l + 1 is the output of layer l"},
            {"transformer_layer_config", io::Json::string("x"), false, "transformer_layer_config"},
            {"model_type", io::Json::string("llama"), true, "llama"},
            {"partial_rotary_factor", io::Json::number(0.25), true, "partial_rotary_factor"},
        };
        for (const Case& c : cases) {
            CAPTURE(c.key);
            io::Json json = of_speculators();
            (c.nested ? inside(json, "transformer_layer_config") : json).set(c.key, c.value);
            try {
                DraftConfig::from_json(json, "config.json");
                FAIL("expected an error");
            } catch (const Error& error) {
                CHECK((error.kind() == ErrorKind::Config));
                CHECK(contains(error.what(), c.message));
                CHECK(contains(error.what(), "config.json"));
            }
        }
    }
}

}  // namespace dflash::model
