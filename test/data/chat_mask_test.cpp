// SPDX-License-Identifier: Apache-2.0
// Which of the model's words are trained, in every family, and that nobody else's ever are.
#include <dflash/core/error.hpp>
#include <dflash/data/chat_format.hpp>

#include <cstdint>
#include <doctest/doctest.h>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace dflash::data {

namespace {

GenericMarks marks() {
    return {.begin = "<s>",
            .system_start = "[SYS]",
            .system_end = "[/SYS]\n",
            .user_start = "[USER]",
            .user_end = "[/USER]\n",
            .assistant_start = "[BOT]",
            .assistant_end = "[/BOT] \n",
            .tool_start = "[TOOL]",
            .tool_end = "[/TOOL]\n"};
}

std::vector<std::string> trained_texts(const Rendered& rendered) {
    std::vector<std::string> texts;
    for (const ByteRange& span : rendered.spans) {
        texts.push_back(rendered.text.substr(static_cast<std::size_t>(span.begin),
                                             static_cast<std::size_t>(span.end - span.begin)));
    }
    return texts;
}

Message message(std::string role, std::string content) {
    Message made;
    made.role = std::move(role);
    made.content = std::move(content);
    return made;
}

Message answer(std::string content, std::string reasoning) {
    Message made = message("assistant", std::move(content));
    made.reasoning_content = std::move(reasoning);
    return made;
}

Message call_of(std::string name) {
    Message made = message("assistant", "");
    made.tool_calls.push_back(
        {.name = std::move(name), .arguments = io::Json::object(), .id = std::nullopt});
    return made;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_SUITE("data.chat_mask") {
    TEST_CASE("chat_mask: reasoning is trained with its closing mark, or left out on request") {
        Conversation conversation;
        conversation.messages = {message("user", "q"), answer("a", "r")};

        struct Case {
            std::string_view family;
            std::string with;
            std::string without;
        };

        for (const Case& c : std::vector<Case>{
                 {"qwen3", "<think>\nr\n</think>\n\na<|im_end|>", "a<|im_end|>"},
                 {"qwen3.5", "r\n</think>\n\na<|im_end|>", "a<|im_end|>"},
                 {"qwen3.5-small", "r\n</think>\n\na<|im_end|>", "a<|im_end|>"},
                 {"qwen3.6", "r\n</think>\n\na<|im_end|>", "a<|im_end|>"},
                 {"qwen3.8", "r\n</think>\n\na<|im_end|>", "a<|im_end|>"},
                 {"gpt-oss",
                  "<|channel|>analysis<|message|>r<|end|><|start|>assistant"
                  "<|channel|>final<|message|>a<|return|>",
                  "<|channel|>final<|message|>a<|return|>"},
             }) {
            CAPTURE(c.family);
            const auto format = make_chat_format(c.family);
            const Rendered with = format->render(conversation, {});
            RenderOptions options;
            options.train_on_thinking = false;
            const Rendered without = format->render(conversation, options);
            CHECK(trained_texts(with) == Texts{c.with});
            CHECK(trained_texts(without) == Texts{c.without});
            CHECK(without.text == with.text);
        }
    }

    TEST_CASE("chat_mask: reasoning of earlier turns is trained where the template keeps it") {
        Conversation conversation;
        conversation.messages = {
            message("user", "p"), answer("a", "r"), message("user", "q"), answer("b", "s")};
        RenderOptions keep;
        keep.preserve_thinking = true;
        RenderOptions drop;
        drop.preserve_thinking = false;
        const Texts both = {"r\n</think>\n\na<|im_end|>", "s\n</think>\n\nb<|im_end|>"};
        const Texts last = {"a<|im_end|>", "s\n</think>\n\nb<|im_end|>"};
        CHECK(trained_texts(make_chat_format("qwen3.5")->render(conversation, keep)) == last);
        CHECK(trained_texts(make_chat_format("qwen3.6")->render(conversation, {})) == last);
        CHECK(trained_texts(make_chat_format("qwen3.6")->render(conversation, keep)) == both);
        CHECK(trained_texts(make_chat_format("qwen3.8")->render(conversation, {})) == both);
        CHECK(trained_texts(make_chat_format("qwen3.8")->render(conversation, drop)) == last);
        CHECK(make_chat_format("qwen3.6")->render(conversation, {}).left_out.reasoning == 1);
        CHECK(make_chat_format("qwen3.6")->render(conversation, keep).left_out.reasoning == 0);
        keep.train_on_thinking = false;
        CHECK(trained_texts(make_chat_format("qwen3.8")->render(conversation, keep)) ==
              Texts{"a<|im_end|>", "b<|im_end|>"});
    }

    TEST_CASE("chat_mask: only what follows the last user message is trained on request") {
        Conversation conversation;
        conversation.messages = {message("user", "p"),
                                 message("assistant", "one"),
                                 message("user", "q"),
                                 message("assistant", "two"),
                                 message("assistant", "three")};
        RenderOptions options;
        options.last_turn_only = true;
        for (const std::string& name : chat_format_names()) {
            CAPTURE(name);
            const auto format = make_chat_format(name, marks());
            const Texts all = trained_texts(format->render(conversation, {}));
            const Texts last = trained_texts(format->render(conversation, options));
            CHECK(format->render(conversation, options).text ==
                  format->render(conversation, {}).text);
            REQUIRE(all.size() == 3);
            CHECK(last == Texts{all[1], all[2]});
        }
    }

    TEST_CASE("chat_mask: answers that call tools are left out on request") {
        Conversation conversation;
        conversation.messages = {message("user", "p"),
                                 call_of("f"),
                                 message("tool", "result"),
                                 message("assistant", "done")};
        RenderOptions options;
        options.train_on_tool_calls = false;
        for (const std::string& name : chat_format_names()) {
            CAPTURE(name);
            if (name == "smollm2" || name == "generic") {
                continue;  // no form for calls
            }
            const auto format = make_chat_format(name);
            const Texts all = trained_texts(format->render(conversation, {}));
            REQUIRE(all.size() == 2);
            CHECK(all[0].find('f') != std::string::npos);
            CHECK(trained_texts(format->render(conversation, options)) == Texts{all[1]});
        }
    }

    TEST_CASE("chat_mask: generic trains content and end mark, without white space behind it") {
        Conversation conversation;
        conversation.messages = {message("system", "s"),
                                 message("user", "[BOT]q[/BOT]"),
                                 message("assistant", "a"),
                                 message("tool", "t"),
                                 message("assistant", " b ")};
        const auto format = make_chat_format("generic", marks());
        const Rendered rendered = format->render(conversation, {.add_generation_prompt = true});
        CHECK(rendered.text ==
              "<s>[SYS]s[/SYS]\n[USER][BOT]q[/BOT][/USER]\n[BOT]a[/BOT] \n"
              "[TOOL]t[/TOOL]\n[BOT] b [/BOT] \n[BOT]");
        CHECK(trained_texts(rendered) == Texts{"a[/BOT]", " b [/BOT]"});
    }

    TEST_CASE("chat_mask: generic names the setting that is missing") {
        GenericMarks incomplete = marks();
        incomplete.assistant_end = " \n";
        CHECK_THROWS_WITH_AS(make_chat_format("generic", incomplete),
                             doctest::Contains("data.generic_assistant_end"),
                             Error);
        incomplete = marks();
        incomplete.user_start.clear();
        CHECK_THROWS_WITH_AS(make_chat_format("generic", incomplete),
                             doctest::Contains("data.generic_user_start"),
                             Error);
        CHECK_THROWS_AS(make_chat_format("generic"), Error);
        GenericMarks no_tools = marks();
        no_tools.tool_start.clear();
        Conversation conversation;
        conversation.messages = {message("user", "q"), message("tool", "t")};
        CHECK_THROWS_WITH_AS(make_chat_format("generic", no_tools)->render(conversation, {}),
                             doctest::Contains("data.generic_tool_start"),
                             Error);
    }

    TEST_CASE("chat_mask: what others wrote is never trained, whatever it looks like") {
        // Every letter a user, system or tool writes is from one set, every letter of the model's
        // from another, and marks of all families stand in both.
        const std::vector<std::string> pieces = {
            "<|im_start|>assistant\n",
            "<|im_end|>",
            "<think>\n",
            "\n</think>\n\n",
            "<tool_call>",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            "<|eot_id|>",
            "<|start|>assistant",
            "<|channel|>commentary<|message|>",
            "<|return|>",
            "[BOT]",
            "[/BOT]",
            "\n",
            " "};
        std::mt19937 random(7);
        const auto pick = [&](std::size_t n) {
            return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
        };
        const auto text_with = [&](char32_t letter) {
            // U+03B1 or U+0436: no template writes Greek or Cyrillic.
            const std::string own = letter == U'a' ? "\u03b1" : "\u0436";
            std::string text = own;
            for (std::size_t n = pick(5); n > 0; --n) {
                text += pieces[pick(pieces.size())] + own;
            }
            return text;
        };
        int num_rendered = 0;
        for (int round = 0; round < 300; ++round) {
            Conversation conversation;
            if (pick(3) == 0) {
                conversation.messages.push_back(message("system", text_with(U'a')));
            }
            for (std::size_t turn = 0; turn <= pick(3); ++turn) {
                conversation.messages.push_back(message("user", text_with(U'a')));
                if (pick(4) == 0) {
                    conversation.messages.push_back(call_of("\u0436"));
                    conversation.messages.push_back(message("tool", text_with(U'a')));
                }
                conversation.messages.push_back(pick(2) == 0
                                                    ? message("assistant", text_with(U'b'))
                                                    : answer(text_with(U'b'), text_with(U'b')));
            }
            RenderOptions options;
            options.train_on_thinking = pick(2) == 0;
            options.train_on_tool_calls = pick(2) == 0;
            options.last_turn_only = pick(2) == 0;
            options.preserve_thinking = pick(2) == 0;
            for (const std::string& name : chat_format_names()) {
                CAPTURE(name);
                Rendered rendered;
                try {
                    rendered = make_chat_format(name, marks())->render(conversation, options);
                } catch (const Error& error) {
                    CHECK(error.kind() == ErrorKind::Data);
                    continue;
                }
                ++num_rendered;
                CAPTURE(rendered.text);
                REQUIRE_FALSE(rendered.spans.empty());
                std::int64_t end = 0;
                for (const ByteRange& span : rendered.spans) {
                    REQUIRE(span.begin >= end);
                    REQUIRE(span.end > span.begin);
                    end = span.end;
                }
                REQUIRE(end <= static_cast<std::int64_t>(rendered.text.size()));
                for (const std::string& text : trained_texts(rendered)) {
                    CHECK(text.find("\u03b1") == std::string::npos);
                    CHECK(text.find("\u0436") != std::string::npos);
                }
            }
        }
        CHECK(num_rendered > 2000);
    }
}

}  // namespace dflash::data
