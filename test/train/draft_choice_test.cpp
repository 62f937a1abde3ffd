// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/train/draft_choice.hpp>

#include <doctest/doctest.h>

namespace dflash::train {
namespace {

target::TargetConfig qwen3(std::int64_t hidden,
                           std::int64_t intermediate,
                           std::int64_t layers,
                           std::int64_t heads) {
    target::TargetConfig t;
    t.family = target::Family::Qwen3;
    t.model_type = "qwen3";
    t.architecture = "Qwen3ForCausalLM";
    t.hidden_size = hidden;
    t.intermediate_size = intermediate;
    t.num_layers = layers;
    t.num_heads = heads;
    t.num_kv_heads = 8;
    t.head_dim = 128;
    t.vocab_size = 151936;
    t.max_position_embeddings = 40960;
    t.rms_norm_eps = 1e-6;
    t.rope.theta = 1e6;
    t.bos_token_id = 151643;
    t.eos_token_ids = {151645};
    return t;
}

target::TargetConfig dense_27b() {
    target::TargetConfig t = qwen3(5120, 17408, 64, 24);
    t.model_type = "qwen3_5_text";
    t.num_kv_heads = 4;
    t.head_dim = 256;
    t.vocab_size = 248320;
    t.max_position_embeddings = 262144;
    t.rope.theta = 1e7;
    return t;
}

// The tokenizer of test/golden with 511 ids at most, so that row 511 is free.
data::Tokenizer tokenizer_512() {
    return data::Tokenizer::from_file("test/golden/tokenizer-512/tokenizer.json");
}

target::TargetConfig tiny() {
    target::TargetConfig t = qwen3(64, 160, 6, 4);
    t.num_kv_heads = 2;
    t.head_dim = 32;
    t.vocab_size = 512;
    return t;
}

DraftChoice choose(const DraftSettings& settings,
                   const target::TargetConfig& target,
                   const std::optional<DraftChoice>& init = {}) {
    const auto format = data::make_chat_format("qwen3");
    return choose_drafter(settings,
                          init,
                          target,
                          {.folder = "test/golden/none", .name = "tiny", .revision = ""},
                          tokenizer_512(),
                          *format);
}

std::string error_of(const DraftSettings& settings,
                     const target::TargetConfig& target,
                     const std::optional<DraftChoice>& init = {}) {
    try {
        choose(settings, target, init);
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::Config);
        return error.what();
    }
    return "";
}

}  // namespace

TEST_SUITE("train.draft_choice") {
    TEST_CASE("Qwen3-4B and Qwen3-8B get their published drafters key by key") {
        for (const bool large : {false, true}) {
            CAPTURE(large);
            const target::TargetConfig t =
                large ? qwen3(4096, 12288, 36, 32) : qwen3(2560, 9728, 36, 32);
            const auto config = published_drafter(t, "anything");
            REQUIRE(config.has_value());
            CHECK(config->hidden_size == (large ? 4096 : 2560));
            CHECK(config->intermediate_size == (large ? 12288 : 9728));
            CHECK(config->num_heads == 32);
            CHECK(config->num_kv_heads == 8);
            CHECK(config->head_dim == 128);
            CHECK(config->block_size == 16);
            CHECK(config->mask_token_id == 151669);
            CHECK(config->target_layer_ids == std::vector<std::int64_t>{1, 9, 17, 25, 33});
            CHECK(config->num_target_layers == 36);
            CHECK(config->layer_types == std::vector<model::LayerType>(5, model::LayerType::Full));
            CHECK(config->rope_theta == 1e6);
            CHECK(config->max_position_embeddings == 40960);
            CHECK(config->vocab_size == 151936);
            CHECK(config->bos_token_id == 151643);
            CHECK(config->eos_token_ids == std::vector<std::int64_t>{151645});
        }
    }

    TEST_CASE("the 27B targets differ by name in their sliding layers") {
        const auto older = published_drafter(dense_27b(), "Qwen3.5-27B");
        const auto newer = published_drafter(dense_27b(), "Qwen3.6-27B");
        REQUIRE(older.has_value());
        REQUIRE(newer.has_value());
        CHECK(older->layer_types == std::vector<model::LayerType>(5, model::LayerType::Full));
        CHECK(older->sliding_window == 0);
        CHECK(newer->layer_types == std::vector<model::LayerType>{model::LayerType::Sliding,
                                                                  model::LayerType::Sliding,
                                                                  model::LayerType::Sliding,
                                                                  model::LayerType::Sliding,
                                                                  model::LayerType::Full});
        CHECK(newer->sliding_window == 2048);
        for (const auto& config : {*older, *newer}) {
            CHECK(config.num_heads == 32);
            CHECK(config.num_kv_heads == 8);
            CHECK(config.head_dim == 128);
            CHECK(config.intermediate_size == 17408);
            CHECK(config.target_layer_ids == std::vector<std::int64_t>{1, 16, 31, 46, 61});
            CHECK(config.mask_token_id == 248070);
            CHECK(config.rope_theta == 1e7);
        }
        CHECK_FALSE(published_drafter(dense_27b(), "another-27B").has_value());
    }

    TEST_CASE("an unknown target gets its drafter by rule") {
        const DraftChoice choice = choose({}, tiny());
        CHECK(choice.config.head_dim == 64);  // H < 1024
        CHECK(choice.config.num_heads ==
              1);  // H / head_dim, since the target's heads have another size
        CHECK(choice.config.num_kv_heads == 1);
        CHECK(choice.config.intermediate_size == 160);
        CHECK(choice.config.num_layers() == 5);
        CHECK(choice.config.block_size == 16);
        CHECK(choice.config.num_features() == 3);  // only layers 1 to L-3 can be tapped
        CHECK(choice.origin == "by rule from the target");
    }

    TEST_CASE("heads are those of a target with the same head size") {
        target::TargetConfig t = tiny();
        t.hidden_size = 576;
        t.num_heads = 9;
        t.num_kv_heads = 3;
        t.head_dim = 64;
        const DraftChoice choice = choose({}, t);
        CHECK(choice.config.num_heads == 9);
        CHECK(choice.config.num_kv_heads == 3);
    }

    TEST_CASE("key and value heads are a quarter of the others in a whole ratio") {
        for (const auto& [hidden, heads, kv] : {std::tuple{1536, 12, 3},
                                                std::tuple{1024, 8, 2},
                                                std::tuple{1280, 10, 2},
                                                std::tuple{896, 14, 2}}) {
            CAPTURE(hidden);
            target::TargetConfig t = tiny();
            t.hidden_size = hidden;
            t.head_dim = 100;
            const DraftChoice choice = choose({}, t);
            CHECK(choice.config.num_heads == heads);
            CHECK(choice.config.num_heads % choice.config.num_kv_heads == 0);
            CHECK(std::abs(choice.config.num_kv_heads - kv) <= 1);
        }
    }

    TEST_CASE("the mask token is the first row past the tokenizer's last token") {
        const data::Tokenizer tokenizer = tokenizer_512();
        const auto format = data::make_chat_format("qwen3");
        CHECK(mask_token_by_rule(tiny(), tokenizer, *format, -1) == tokenizer.num_ids());
        CHECK(mask_token_by_rule(tiny(), tokenizer, *format, 510) == 511);
    }

    TEST_CASE(
        "without a free row it is the last special token that the format does not use, else an "
        "error") {
        const data::Tokenizer tokenizer = tokenizer_512();
        const auto format = data::make_chat_format("qwen3");
        target::TargetConfig full = tiny();
        full.vocab_size = tokenizer.num_ids();
        full.bos_token_id = -1;
        full.eos_token_ids.clear();
        const auto end_of_text = tokenizer.id_of("<|endoftext|>");
        REQUIRE(end_of_text.has_value());
        bool used = false;
        for (const std::string& token : format->used_tokens()) {
            used = used || token == "<|endoftext|>";
        }
        if (!used) {
            CHECK(mask_token_by_rule(full, tokenizer, *format, -1) == *end_of_text);
        }
        full.eos_token_ids = {*end_of_text};
        try {
            mask_token_by_rule(full, tokenizer, *format, -1);
            FAIL("no token is free");
        } catch (const Error& error) {
            CHECK(std::string(error.what()).find("draft.mask_token_id") != std::string::npos);
        }
    }

    TEST_CASE("settings change the drafter") {
        DraftSettings settings;
        settings.num_layers = 3;
        settings.sliding_layers = {{0, 2}};
        settings.sliding_window = 24;
        settings.block_size = 8;
        settings.target_layer_ids = {{1, 2}};
        settings.mask_token_id = 5;
        const model::DraftConfig config = choose(settings, tiny()).config;
        CHECK(config.layer_types == std::vector<model::LayerType>{model::LayerType::Sliding,
                                                                  model::LayerType::Full,
                                                                  model::LayerType::Sliding});
        CHECK(config.sliding_window == 24);
        CHECK(config.block_size == 8);
        CHECK(config.target_layer_ids == std::vector<std::int64_t>{1, 2});
        CHECK(config.mask_token_id == 5);
    }

    TEST_CASE("settings that do not fit are refused by name") {
        DraftSettings settings;
        settings.sliding_window = 24;
        CHECK(error_of(settings, tiny()).find("draft.sliding_window") != std::string::npos);
        settings = {};
        settings.sliding_layers = {{7}};
        CHECK(
            error_of(settings, tiny()).find("draft.sliding_layers: got layer 7, expected 0 to 4") !=
            std::string::npos);
        settings = {};
        settings.target_layer_ids = {{5}};
        CHECK(error_of(settings, tiny()).find("expected 0 to 4") != std::string::npos);
        settings = {};
        settings.mask_token_id = 512;
        CHECK(error_of(settings, tiny()).find("draft.mask_token_id: got 512") != std::string::npos);
    }

    TEST_CASE("a drafter to start from is not contradicted, but may run with another block size") {
        const DraftChoice first = choose({}, tiny());
        const DraftChoice init{first.config, "some/folder"};
        DraftSettings settings;
        settings.num_layers = 2;
        CHECK(error_of(settings, tiny(), init)
                  .find("draft.num_layers: got 2, but the drafter to start from has 5") !=
              std::string::npos);
        settings = {};
        settings.block_size = 8;
        CHECK(choose(settings, tiny(), init).config.block_size == 8);
        target::TargetConfig other = tiny();
        other.hidden_size = 128;
        CHECK(error_of({}, other, init).find("belongs to another target") != std::string::npos);
    }
}

}  // namespace dflash::train
