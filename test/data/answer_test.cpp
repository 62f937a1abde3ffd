// SPDX-License-Identifier: Apache-2.0
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
            bool renders_back;
        };

        const std::vector<Case> cases = {
            {"qwen3", true, "<think>\nwell\n</think>\n\nHello.", "well", "Hello.", true},
            {"qwen3", false, "Hello.", std::nullopt, "Hello.", true},
            {"qwen3", true, "Hello.", std::nullopt, "Hello.", false},  // the mode's block is
                                                                       // missing
            {"qwen3", true, "<think>\nwell, this was cut", "well, this was cut", "", false},
            {"qwen3",
             false,
             "a\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
             std::nullopt,
             "a\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
             true},
            {"qwen3.5", true, "well\n</think>\n\nHello.", "well", "Hello.", true},
            {"qwen3.5", true, "well, this was cut", "well, this was cut", "", false},
            {"smollm2",
             std::nullopt,
             "Hello </think> there",
             std::nullopt,
             "Hello </think> there",
             true},
            {"smollm2", std::nullopt, " Hello.\n\n", std::nullopt, " Hello.\n\n", true},
        };
        for (const Case& c : cases) {
            CAPTURE(c.format);
            CAPTURE(c.answer);
            const auto format = make_chat_format(c.format);
            RenderOptions options;
            options.add_generation_prompt = true;
            options.enable_thinking = c.thinking;
            const std::string prompt = format->render(question(), options).text;
            const ReadAnswer got = read_answer(*format, question(), options, prompt, c.answer);
            CHECK(got.message.role == "assistant");
            CHECK(got.message.reasoning_content == c.reasoning);
            CHECK(got.message.content == c.content);
            CHECK(got.renders_back == c.renders_back);
        }
    }
}

}  // namespace dflash::data
