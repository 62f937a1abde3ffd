// SPDX-License-Identifier: Apache-2.0
#include "model_folder.hpp"

#include <dflash/target/generation_config.hpp>

#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace dflash::target {
namespace {

TargetConfig config_with_stop(std::int64_t id) {
    TargetConfig config;
    config.vocab_size = 1000;
    config.eos_token_ids = {id};
    return config;
}

}  // namespace

TEST_SUITE("target.generation_config") {
    TEST_CASE("generation_config: sampling and stop tokens are those of the file") {
        struct Case {
            std::string json;
            Sampling sampling;
            std::vector<TokenId> stop_tokens;
            std::vector<std::string> ignored;
        };

        const std::vector<Case> cases = {
            // Qwen3, Llama 3.1, SmolLM2, Qwen2.5.
            {R"({"do_sample": true, "eos_token_id": [645, 643], "pad_token_id": 643,
                 "temperature": 0.6, "top_k": 20, "top_p": 0.95})",
             {.temperature = 0.6, .top_p = 0.95, .top_k = 20},
             {2, 643, 645},
             {}},
            {R"({"do_sample": true, "eos_token_id": 9, "temperature": 0.6, "top_p": 0.9})",
             {.temperature = 0.6, .top_p = 0.9, .top_k = 0},
             {2, 9},
             {}},
            {R"({"eos_token_id": 2, "transformers_version": "4.42.3"})", {}, {2}, {}},
            {R"({"do_sample": true, "repetition_penalty": 1.05, "temperature": 0.7,
                 "top_p": 0.8, "top_k": 20})",
             {.temperature = 0.7, .top_p = 0.8, .top_k = 20},
             {2},
             {"repetition_penalty 1.05"}},
            {R"({"do_sample": false, "temperature": 0.7, "repetition_penalty": 1.0})", {}, {2}, {}},
            {R"({"temperature": 0.7})", {.temperature = 0.7}, {2}, {}},
            {R"({"do_sample": true})", {.temperature = 1}, {2}, {}},
            {R"({"eos_token_id": null})", {}, {2}, {}},
        };
        for (const Case& c : cases) {
            CAPTURE(c.json);
            const testing::TempFolder folder;
            folder.write("generation_config.json", c.json);
            const GenerationConfig got =
                GenerationConfig::read(folder.string(), config_with_stop(2));
            CHECK(got.found);
            CHECK(got.sampling == c.sampling);
            CHECK(got.stop_tokens == c.stop_tokens);
            CHECK(got.ignored == c.ignored);
        }
    }

    TEST_CASE("generation_config: a folder without the file is greedy, with the model's end") {
        const testing::TempFolder folder;
        const GenerationConfig got = GenerationConfig::read(folder.string(), config_with_stop(5));
        CHECK(!got.found);
        CHECK(got.sampling == Sampling{});
        CHECK(got.stop_tokens == std::vector<TokenId>{5});
    }

    TEST_CASE("generation_config: values that are none are errors with the file") {
        for (const char* json : {R"({"eos_token_id": 1000})",
                                 R"({"eos_token_id": ["x"]})",
                                 R"({"eos_token_id": "x"})",
                                 R"({"temperature": -1})",
                                 R"({"temperature": 1, "top_p": 0})",
                                 R"({"temperature": 1, "top_p": 1.5})",
                                 R"({"temperature": 1, "top_k": -3})",
                                 R"({"temperature": "warm"})",
                                 R"([1])",
                                 R"({"temperature")"}) {
            CAPTURE(json);
            const testing::TempFolder folder;
            folder.write("generation_config.json", json);
            const auto error = testing::error_of(
                [&] { GenerationConfig::read(folder.string(), config_with_stop(5)); });
            REQUIRE(error);
            CHECK(error->kind() == ErrorKind::Config);
            CHECK((std::string(error->what())).find("generation_config.json") != std::string::npos);
        }
    }
}

}  // namespace dflash::target
