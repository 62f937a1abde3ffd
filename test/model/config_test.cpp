// SPDX-License-Identifier: Apache-2.0
#include "reference.hpp"

#include <dflash/core/error.hpp>
#include <dflash/model/config.hpp>

#include <doctest/doctest.h>
#include <string>

namespace dflash::model {
namespace {

/// A published config of the first generation (drafter of an 8B target), as text.
std::string published() {
    return R"({"architectures": ["DFlashDraftModel"], "attention_bias": false,
        "attention_dropout": 0.0, "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": 16, "bos_token_id": 151643, "eos_token_id": 151645,
        "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
        "dtype": "bfloat16", "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 12288,
        "layer_types": ["full_attention", "full_attention", "full_attention", "full_attention",
                        "full_attention"],
        "max_position_embeddings": 40960, "max_window_layers": 5, "model_type": "qwen3",
        "num_attention_heads": 32, "num_hidden_layers": 5, "num_key_value_heads": 8,
        "num_target_layers": 36, "rms_norm_eps": 1e-06, "rope_scaling": null,
        "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": false,
        "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";
}

io::Json parsed() {
    return io::Json::parse(published(), "published");
}

DraftConfig read(const io::Json& json) {
    return DraftConfig::from_json(json, "config.json");
}

io::Json& nested(io::Json& json) {
    for (auto& [key, value] : json.members()) {
        if (key == "dflash_config") {
            return value;
        }
    }
    FAIL("no dflash_config");
    return json;
}

std::string refusal(const io::Json& json) {
    try {
        read(json);
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::Config);
        return error.what();
    }
    return "accepted";
}

io::Json strings(std::vector<std::string> values) {
    std::vector<io::Json> items;
    for (std::string& value : values) {
        items.push_back(io::Json::string(std::move(value)));
    }
    return io::Json::array(std::move(items));
}

TEST_SUITE("model.config") {
    TEST_CASE("reads a published config of the first generation") {
        const DraftConfig config = read(parsed());
        CHECK(config.hidden_size == 4096);
        CHECK(config.intermediate_size == 12288);
        CHECK(config.num_heads == 32);
        CHECK(config.num_kv_heads == 8);
        CHECK(config.head_dim == 128);
        CHECK(config.vocab_size == 151936);
        CHECK(config.block_size == 16);
        CHECK(config.mask_token_id == 151669);
        CHECK(config.target_layer_ids == std::vector<std::int64_t>{1, 9, 17, 25, 33});
        CHECK(config.num_target_layers == 36);
        CHECK((config.layer_types == std::vector(5, LayerType::Full)));
        CHECK(config.rope_theta == 1e6);
        CHECK(config.rms_norm_eps == 1e-6);
        CHECK(config.bos_token_id == 151643);
        CHECK(config.eos_token_ids == std::vector<std::int64_t>{151645});
        CHECK_FALSE(config.causal(0));
        CHECK(config.window(0) == 0);
    }

    TEST_CASE("reads the second generation: block_size and rope inside, the nested one wins") {
        io::Json json = parsed();
        nested(json).set("block_size", io::Json::integer(8));
        json.set("rope_theta", io::Json());
        io::Json rope = io::Json::object();
        rope.set("rope_theta", io::Json::integer(10000000));
        rope.set("rope_type", io::Json::string("default"));
        json.set("rope_parameters", rope);
        const DraftConfig config = read(json);
        CHECK(config.block_size == 8);
        CHECK(config.rope_theta == 1e7);
    }

    TEST_CASE("sliding layers have a window and are causal unless told otherwise") {
        io::Json json = parsed();
        json.set("layer_types",
                 strings({"sliding_attention",
                          "sliding_attention",
                          "sliding_attention",
                          "sliding_attention",
                          "full_attention"}));
        json.set("use_sliding_window", io::Json::boolean(true));
        json.set("sliding_window", io::Json::integer(2048));
        DraftConfig config = read(json);
        CHECK(config.window(0) == 2048);
        CHECK(config.window(4) == 0);
        CHECK(config.causal(0));
        CHECK_FALSE(config.causal(4));

        nested(json).set("causal", io::Json::boolean(false));
        CHECK_FALSE(read(json).causal(0));
        json.set("is_causal", io::Json::boolean(true));
        config = read(json);
        CHECK(config.causal(0));
        CHECK(config.causal(4));
        CHECK(DraftConfig::from_json(config.to_json(), "again") == config);
    }

    TEST_CASE("what is written reads back, has block_size in both places, and the published keys") {
        for (DraftConfig config : {read(parsed()),
                                   small_config({LayerType::Sliding, LayerType::Full}),
                                   small_config({LayerType::Full})}) {
            if (config.layer_types == std::vector{LayerType::Full}) {
                config.sliding_window = 0;
            }
            config.eos_token_ids = {3, 4};
            const io::Json json = config.to_json();
            CHECK(DraftConfig::from_json(json, "again") == config);
            CHECK(json.find("block_size")->to_integer() == config.block_size);
            CHECK(json.find("dflash_config")->find("block_size")->to_integer() ==
                  config.block_size);
        }
        const io::Json json = read(parsed()).to_json();
        const io::Json original = parsed();
        for (const auto& [key, value] : original.members()) {
            CAPTURE(key);
            // auto_map names a file that is not written.
            if (key != "auto_map" && key != "dflash_config") {
                REQUIRE(json.find(key) != nullptr);
                if (value.is_number()) {
                    CHECK(json.find(key)->to_double() == value.to_double());
                } else {
                    CHECK(*json.find(key) == value);
                }
            }
        }
    }

    TEST_CASE("refuses what changes the maths, by name") {
        struct Refusal {
            const char* key;
            io::Json value;
            bool inside;
        };

        const std::vector<Refusal> refusals{
            {"conv_kernel_size", io::Json::integer(2), true},
            {"selector_rank", io::Json::integer(256), true},
            {"projector_type", io::Json::string("domino"), true},
            {"shift_label", io::Json::boolean(true), true},
            {"output_multiplier", io::Json::number(0.5), false},
            {"final_logit_softcapping", io::Json::number(20), false},
            {"input_embedding_scale", io::Json::number(2), false},
            {"rope_is_neox_style", io::Json::boolean(false), false},
            {"attention_bias", io::Json::boolean(true), false},
            {"speculators_model_type", io::Json::string("dflash"), false},
            {"hidden_act", io::Json::string("gelu"), false},
        };
        for (const Refusal& r : refusals) {
            CAPTURE(r.key);
            io::Json json = parsed();
            (r.inside ? nested(json) : json).set(r.key, r.value);
            const std::string message = refusal(json);
            CHECK(message.find(r.key) != std::string::npos);
            CHECK(message.find("config.json") != std::string::npos);
        }
        io::Json json = parsed();
        json.set("architectures", strings({"DFlash2DraftModel"}));
        CHECK(refusal(json).find("DFlash2DraftModel") != std::string::npos);
        io::Json rope = io::Json::object();
        rope.set("rope_type", io::Json::string("yarn"));
        json = parsed();
        json.set("rope_scaling", rope);
        CHECK(refusal(json).find("yarn") != std::string::npos);
        // Values that change nothing are accepted.
        json = parsed();
        json.set("output_multiplier", io::Json::number(1.0));
        json.set("final_logit_softcapping", io::Json());
        json.set("rope_is_neox_style", io::Json::boolean(true));
        CHECK(read(json) == read(parsed()));
    }

    TEST_CASE("refuses numbers that do not fit together, with both values") {
        struct Wrong {
            const char* key;
            std::int64_t value;
            const char* expected;
        };

        for (const Wrong& w : std::vector<Wrong>{
                 {"num_key_value_heads", 5, "multiple of num_key_value_heads = 5"},
                 {"head_dim", 127, "even"},
                 {"hidden_size", 0, "1 or more"},
                 {"num_hidden_layers", 4, "num_hidden_layers = 4"},
                 {"num_target_layers", 30, "got 33, expected layers 0 to 29"},
                 {"num_target_layers", INT64_MIN, "expected 0 or more"},
                 {"vocab_size", 1000, "got 151669, expected a row of the embedding, 0 to 999"}}) {
            CAPTURE(w.key);
            io::Json json = parsed();
            json.set(w.key, io::Json::integer(w.value));
            const std::string message = refusal(json);
            CAPTURE(message);
            CHECK(message.find(w.expected) != std::string::npos);
        }
        io::Json json = parsed();
        json.set("block_size", io::Json::integer(1));
        CHECK(refusal(json).find("block_size: got 1, expected 2 or more") != std::string::npos);
        json = parsed();
        nested(json).set("target_layer_ids", io::Json());
        CHECK(refusal(json).find("target_layer_ids") != std::string::npos);
        json = parsed();
        json.set("use_sliding_window", io::Json::boolean(false));
        json.set("layer_types",
                 strings({"sliding_attention",
                          "full_attention",
                          "full_attention",
                          "full_attention",
                          "full_attention"}));
        CHECK(refusal(json).find("use_sliding_window is false") != std::string::npos);
        CHECK(refusal(io::Json::array()).find("expected an object") != std::string::npos);
    }

    TEST_CASE("layer ids are spread evenly from layer 1 to the third from the end") {
        using Ids = std::vector<std::int64_t>;
        CHECK(default_target_layer_ids(36, 5) == Ids{1, 9, 17, 25, 33});
        CHECK(default_target_layer_ids(64, 5) == Ids{1, 16, 31, 46, 61});
        CHECK(default_target_layer_ids(28, 5) == Ids{1, 7, 13, 19, 25});
        CHECK(default_target_layer_ids(40, 5) == Ids{1, 10, 19, 28, 37});
        CHECK(default_target_layer_ids(32, 5) == Ids{1, 8, 15, 22, 29});
        CHECK(default_target_layer_ids(40, 8) == Ids{1, 6, 11, 16, 22, 27, 32, 37});
        CHECK(default_target_layer_ids(36, 1) == Ids{18});
        // 1 + 4.5 and 1 + 13.5: halves go to the even neighbour.
        CHECK(default_target_layer_ids(22, 5) == Ids{1, 6, 10, 14, 19});
    }

    TEST_CASE("weights are the published ones, by name, shape and number") {
        struct Published {
            std::int64_t H, I, V;
            double billions;
        };

        for (const auto& [H, I, V, billions] : {Published{2560, 9728, 151936, 0.537},
                                                Published{4096, 12288, 151936, 1.049},
                                                Published{5120, 17408, 248320, 1.730}}) {
            DraftConfig config = read(parsed());
            config.hidden_size = H;
            config.intermediate_size = I;
            config.vocab_size = V;
            const std::vector<WeightSpec> specs = weight_specs(config);
            CHECK(specs.size() == 58);
            std::int64_t total = 0;
            for (const WeightSpec& spec : specs) {
                std::int64_t count = 1;
                for (const std::int64_t size : spec.shape) {
                    count *= size;
                }
                total += count;
                CHECK(spec.name.find("embed") == std::string::npos);
            }
            const std::int64_t d = 128;
            CHECK(total == 5 * (H * 32 * d * 2 + 2 * H * 8 * d + 3 * H * I + 2 * H + 2 * d) +
                               5 * H * H + 2 * H);
            CHECK(static_cast<double>(total) / 1e9 == doctest::Approx(billions).epsilon(1e-3));
        }
        const std::vector<WeightSpec> specs = weight_specs(read(parsed()));
        CHECK(specs[1].name == "layers.0.self_attn.q_proj.weight");
        CHECK(specs[1].shape == std::vector<std::int64_t>{4096, 4096});
        CHECK(specs[2].shape == std::vector<std::int64_t>{1024, 4096});
        CHECK(specs[8].name == "layers.0.mlp.gate_proj.weight");
        CHECK(specs[8].shape == std::vector<std::int64_t>{12288, 4096});
        CHECK(specs[55].name == "fc.weight");
        CHECK(specs[55].shape == std::vector<std::int64_t>{4096, 20480});
        CHECK(specs[57].name == "norm.weight");
    }

    TEST_CASE("slots lose weight by exp(-(k-1)/gamma)") {
        const data::BlockRule rule{.block_size = 16, .loss_decay_gamma = 7, .max_anchors = 512};
        for (const auto& [slot, weight] : {std::pair{0, 0.0},
                                           std::pair{1, 1.0},
                                           std::pair{2, 0.8669},
                                           std::pair{8, 0.3679},
                                           std::pair{15, 0.1353}}) {
            CAPTURE(slot);
            CHECK(static_cast<double>(data::slot_weight(rule, slot)) ==
                  doctest::Approx(weight).epsilon(1e-3));
        }
    }
}

}  // namespace
}  // namespace dflash::model
