// SPDX-License-Identifier: Apache-2.0
#include "tiny_tokenizer.hpp"

#include <dflash/data/answer.hpp>

#include <doctest/doctest.h>
#include <optional>
#include <string>
#include <vector>

namespace dflash::data {
namespace {

Conversation question() {
    Conversation conversation;
    Message message;
    message.role = "user";
    message.content = "Hi";
    conversation.messages.push_back(message);
    return conversation;
}

}  // namespace

TEST_SUITE("data.answer") {
    TEST_CASE("answer: reasoning and content are told apart as the family writes them") {
        struct Case {
            std::string format;
            std::optional<bool> thinking;
            std::string answer;
            std::optional<std::string> reasoning;
            std::string content;
            bool comes_back;
            bool cut = false;
        };

        const std::vector<Case> cases = {
            {"qwen3", true, "<think>\nwell\n</think>\n\nHello.", "well", "Hello.", true},
            {"qwen3", false, "Hello.", std::nullopt, "Hello.", true},
            {"qwen3", true, "Hello.", std::nullopt, "Hello.", false},  // the mode's block is
                                                                       // missing
            {"qwen3", true, "<think>\nwell, this was cut", "well, this was cut", "", false},
            {"qwen3", true, "<think>\nwell, this was cut", "well, this was cut", "", true, true},
            {"qwen3", true, "<think>\nwell\n</think>\n\nHel", "well", "Hel", true, true},
            {"qwen3", true, "Hel", std::nullopt, "Hel", false, true},
            {"qwen3",
             false,
             "a\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
             std::nullopt,
             "a\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
             true},
            {"qwen3.5", true, "well\n</think>\n\nHello.", "well", "Hello.", true},
            {"qwen3.5", true, "well, this was cut", "well, this was cut", "", false},
            {"qwen3.5", true, "well, this was cut", "well, this was cut", "", true, true},
            {"qwen3.5", false, "Hello. ", std::nullopt, "Hello. ", false, true},
            {"smollm2",
             std::nullopt,
             "Hello </think> there",
             std::nullopt,
             "Hello </think> there",
             true},
            {"smollm2", std::nullopt, "<think>\nHel", std::nullopt, "<think>\nHel", true, true},
            {"smollm2", std::nullopt, " Hello.\n\n", std::nullopt, " Hello.\n\n", true},
        };
        const Tokenizer tokenizer = testing::byte_tokenizer();
        for (const Case& c : cases) {
            CAPTURE(c.format);
            CAPTURE(c.answer);
            CAPTURE(c.cut);
            const auto format = make_chat_format(c.format);
            RenderOptions options;
            options.add_generation_prompt = true;
            options.enable_thinking = c.thinking;
            const std::string prompt = format->render(question(), options).text;
            const std::vector<TokenId> asked = tokenizer.encode(prompt).ids;
            const std::vector<TokenId> written = tokenizer.encode(c.answer).ids;
            const ReadAnswer got = read_answer(*format,
                                               tokenizer,
                                               question(),
                                               options,
                                               {prompt, asked},
                                               {c.answer, written},
                                               c.cut);
            CHECK(got.message.role == "assistant");
            CHECK(got.message.reasoning_content == c.reasoning);
            CHECK(got.message.content == c.content);
            CHECK(got.comes_back == c.comes_back);
        }
    }

    TEST_CASE("answer: comes back only if its text is tokenised to what the model chose") {
        testing::TinySpec spec;
        spec.merges = {{"a", "b"}};  // id 256
        spec.added = {"<|im_start|>", "<|im_end|>"};
        const Tokenizer tokenizer = testing::tiny_tokenizer(spec);
        const auto format = make_chat_format("smollm2");
        RenderOptions options;
        options.add_generation_prompt = true;
        const std::string prompt = format->render(question(), options).text;
        const std::vector<TokenId> asked = tokenizer.encode(prompt).ids;
        const TokenId end = *tokenizer.id_of("<|im_end|>");

        struct Case {
            std::vector<TokenId> tokens;
            bool comes_back;
        };

        const std::vector<Case> cases = {
            {{'x', 256, 'y'}, true},
            {{'x', 'a', 'b', 'y'}, false},    // the same text
            {{'x', 0xc3, 0xa9}, true},        // e with an acute accent
            {{'x', 0xc3, 'y'}, false},        // no character: U+FFFD
            {{'x', 0xff}, false},             // no byte of any
            {{'x', 0xef, 0xbf, 0xbd}, true},  // U+FFFD that the model wrote
            {{'x', end, 'y'}, true},
            {{}, true},
        };
        for (const Case& c : cases) {
            CAPTURE(tokenizer.decode(c.tokens));
            for (const bool cut : {false, true}) {
                CAPTURE(cut);
                const ReadAnswer got = read_answer(*format,
                                                   tokenizer,
                                                   question(),
                                                   options,
                                                   {prompt, asked},
                                                   {tokenizer.decode(c.tokens), c.tokens},
                                                   cut);
                CHECK(got.message.content == tokenizer.decode(c.tokens));
                CHECK(got.comes_back == c.comes_back);
            }
        }
    }

    TEST_CASE("answer: a character that was cut in its middle is taken off") {
        const Tokenizer tokenizer = testing::byte_tokenizer();
        const auto kept = [&](const std::vector<TokenId>& tokens) {
            return without_cut_character(tokenizer, tokens).size();
        };
        CHECK(kept({'x', 0xf0, 0x9f, 0x98}) == 1);
        CHECK(kept({'x', 0xe2, 0x82}) == 1);
        CHECK(kept({0xc3}) == 0);
        CHECK(kept({'x', 0xf0, 0x9f, 0x98, 0x80}) == 5);  // a whole one
        CHECK(kept({'x', 0xc3, 'y'}) == 3);
        CHECK(kept({'x', 0xff, 0xff, 0xff, 0xff}) == 5);  // more than one
        CHECK(kept({}) == 0);
    }
}

}  // namespace dflash::data
