// SPDX-License-Identifier: Apache-2.0
#include <dflash/data/prompt_row.hpp>

#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace dflash::data {
namespace {

Message reply(std::string text) {
    Message message;
    message.role = "assistant";
    message.content = std::move(text);
    return message;
}

// Roles and contents, "user: a | assistant: b".
std::string told(const Conversation& conversation) {
    std::string text;
    for (const Message& message : conversation.messages) {
        text += (text.empty() ? "" : " | ") + message.role + ": " + message.content;
    }
    return text;
}

// What is asked in each turn; answers are "A1", "A2" ...
std::vector<std::string> questions(PromptRow& row) {
    std::vector<std::string> asked;
    while (!row.done()) {
        asked.push_back(told(row.question()));
        row.answer(reply("A" + std::to_string(asked.size())));
    }
    return asked;
}

const char* const kTwoTurns =
    R"({"id": 7, "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"}]})";

}  // namespace

TEST_SUITE("data.prompt_row") {
    TEST_CASE("prompt_row: asks for the answers that are missing, in every shape") {
        struct Case {
            std::string row;
            std::vector<std::string> questions;
            std::string result;
        };

        const std::vector<Case> cases = {
            {R"({"prompt": "q", "level": 3, "tags": ["x", 1.50]})",
             {"user: q"},
             R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "A1"}], "level": 3, "tags": ["x", 1.50]})"},
            {R"({"n": 1, "prompt": "q", "response": ""})",
             {"user: q"},
             R"({"n": 1, "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "A1"}]})"},
            {R"({"prompt": "q", "response": null, "system": "s"})",
             {"system: s | user: q"},
             R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "A1"}], "response": null, "system": "s"})"},
            {R"({"turns": ["q", "r"], "category": "math"})",
             {"user: q", "user: q | assistant: A1 | user: r"},
             R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "A1"}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "A2"}], "category": "math"})"},
            // Messages stay as they were written.
            {R"({"messages": [{"content": "q", "role": "user", "mood": "glad"}]})",
             {"user: q"},
             R"({"messages": [{"content": "q", "role": "user", "mood": "glad"}, {"role": "assistant", "content": "A1"}]})"},
            {R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}]})",
             {"user: q | assistant: b | user: c"},
             R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "A1"}]})"},
            {R"([{"role": "user", "content": "q"}])",
             {"user: q"},
             R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "A1"}]})"},
        };
        for (const Case& c : cases) {
            CAPTURE(c.row);
            auto result = PromptRow::read(c.row, false, AnswerChoice::Missing);
            REQUIRE(result.prompt);
            CHECK(questions(*result.prompt) == c.questions);
            CHECK(result.prompt->answered() == static_cast<std::int64_t>(c.questions.size()));
            CHECK(result.prompt->to_json({}) == c.result);
        }
    }

    TEST_CASE("prompt_row: leaves rows alone that have their answer, or are finished text") {
        for (const char* row : {kTwoTurns,
                                R"({"prompt": "q", "response": "r"})",
                                R"({"text": "hello"})",
                                R"({"input_ids": [1, 2], "labels": [1, 2]})"}) {
            CAPTURE(row);
            const auto result = PromptRow::read(row, false, AnswerChoice::Missing);
            CHECK(!result.prompt);
            CHECK(!result.fault);
        }
    }

    TEST_CASE("prompt_row: all answers are written anew, each behind those before it") {
        auto result = PromptRow::read(kTwoTurns, false, AnswerChoice::All);
        REQUIRE(result.prompt);
        CHECK(questions(*result.prompt) ==
              std::vector<std::string>{"system: s | user: a",
                                       "system: s | user: a | assistant: A1 | user: c"});
        CHECK(result.prompt->to_json({{"thinking", io::Json::boolean(true)}}) ==
              R"({"id": 7, "messages": [{"role": "system", "content": "s"}, )"
              R"({"role": "user", "content": "a"}, {"role": "assistant", "content": "A1"}, )"
              R"({"role": "user", "content": "c"}, {"role": "assistant", "content": "A2"}], )"
              R"("thinking": true})");

        auto pair =
            PromptRow::read(R"({"prompt": "q", "response": "r"})", false, AnswerChoice::All);
        REQUIRE(pair.prompt);
        CHECK(questions(*pair.prompt) == std::vector<std::string>{"user: q"});
    }

    TEST_CASE("prompt_row: of a row with tool calls only the last answer is written anew") {
        auto result = PromptRow::read(
            R"({"messages": [{"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function",
             "function": {"name": "f", "arguments": {}}}]},
            {"role": "tool", "content": "t"}, {"role": "assistant", "content": "b"}]})",
            false,
            AnswerChoice::All);
        REQUIRE(result.prompt);
        CHECK(questions(*result.prompt) ==
              std::vector<std::string>{"user: a | assistant:  | tool: t"});
    }

    TEST_CASE("prompt_row: a row that is ended early keeps the turns that have answers") {
        auto result =
            PromptRow::read(R"({"turns": ["q", "r", "s"]})", false, AnswerChoice::Missing);
        REQUIRE(result.prompt);
        result.prompt->answer(reply("A"));
        result.prompt->end();
        CHECK(result.prompt->done());
        CHECK(result.prompt->to_json({}) == R"({"messages": [{"role": "user", "content": "q"}, )"
                                            R"({"role": "assistant", "content": "A"}]})");
    }

    TEST_CASE("prompt_row: columns of the same names are replaced") {
        auto result = PromptRow::read(
            R"({"thinking": "?", "prompt": "q", "x": 1})", false, AnswerChoice::Missing);
        REQUIRE(result.prompt);
        questions(*result.prompt);
        CHECK(result.prompt->to_json({{"thinking", io::Json::boolean(false)}}) ==
              R"({"messages": [{"role": "user", "content": "q"}, )"
              R"({"role": "assistant", "content": "A1"}], "x": 1, "thinking": false})");
    }

    TEST_CASE("prompt_row: what it writes reads back as the same conversation") {
        auto result = PromptRow::read(
            R"({"prompt": [{"role": "user", "content": "a", "weight": 1},
            {"role": "assistant", "content": null, "weight": 0, "reasoning_content": "r",
             "tool_calls": [{"id": "c1", "type": "function",
             "function": {"name": "f", "arguments": {"x": [1, 2.50]}}}]},
            {"role": "tool", "content": "t", "name": "f", "tool_call_id": "c1"}],
            "tools": [{"type": "function", "function": {"name": "f"}}]})",
            false,
            AnswerChoice::Missing);
        REQUIRE(result.prompt);
        result.prompt->answer(reply("done"));
        const RowResult again = read_row(result.prompt->to_json({}));
        REQUIRE(again.row);
        const auto& conversation = std::get<Conversation>(again.row->content);
        CHECK(conversation.messages == result.prompt->question().messages);
        CHECK(conversation.tools == result.prompt->question().tools);
    }

    TEST_CASE("prompt_row: rows that cannot be used keep their fault") {
        for (const char* row : {R"({"prompt": "q")",
                                R"({"prompt": ""})",
                                R"({"what": 1})",
                                R"({"messages": [{"role": "assistant", "content": "x"}]})",
                                R"({"messages": [{"role": "user", "content": "x"},
                                   {"role": "assistant", "content": ""}]})"}) {
            CAPTURE(row);
            const auto result = PromptRow::read(row, false, AnswerChoice::Missing);
            CHECK(!result.prompt);
            CHECK(result.fault);
        }
    }
}

}  // namespace dflash::data
