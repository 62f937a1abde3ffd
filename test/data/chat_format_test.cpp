// SPDX-License-Identifier: Apache-2.0
#include "golden_lines.hpp"

#include <dflash/core/error.hpp>
#include <dflash/data/chat_format.hpp>
#include <dflash/data/dataset.hpp>

#include <array>
#include <doctest/doctest.h>
#include <map>
#include <optional>

namespace dflash::data {

namespace {

Conversation conversation_of(std::string_view messages, std::string_view tools = "null") {
    const io::Json tools_json = io::Json::parse(tools, "tools");
    return read_messages(io::Json::parse(messages, "messages"), &tools_json);
}

RenderOptions options_of(const io::Json& json) {
    RenderOptions options;
    for (const auto& [key, value] : json.members()) {
        if (key == "add_generation_prompt") {
            options.add_generation_prompt = value.as_bool();
        } else if (key == "enable_thinking") {
            options.enable_thinking = value.as_bool();
        } else if (key == "preserve_thinking") {
            options.preserve_thinking = value.as_bool();
        } else if (key == "reasoning_effort") {
            options.reasoning_effort = value.as_string();
        } else {
            REQUIRE((key == "date_string" || key == "current_date"));
            options.date = value.as_string();
        }
    }
    return options;
}

std::vector<ByteRange> spans_of(const io::Json& json) {
    std::vector<ByteRange> spans;
    for (const io::Json& span : json.items()) {
        spans.push_back(
            {.begin = *span.items().at(0).to_integer(), .end = *span.items().at(1).to_integer()});
    }
    return spans;
}

// Whether the text before the last span is the prompt that a server would send for that turn.
bool prompt_matches(const ChatFormat& format,
                    const Conversation& conversation,
                    RenderOptions options,
                    const Rendered& rendered) {
    const auto& messages = conversation.messages;
    std::size_t turn = messages.size();
    while (turn > 0 && messages[turn - 1].role != "assistant") {
        --turn;
    }
    REQUIRE(turn > 0);
    const std::string before =
        rendered.text.substr(0, static_cast<std::size_t>(rendered.spans.back().begin));
    if (!options.enable_thinking && before.ends_with("<think>\n\n</think>\n\n")) {
        options.enable_thinking = false;
    } else if (!options.enable_thinking && before.ends_with("<think>\n")) {
        options.enable_thinking = true;
    }
    options.add_generation_prompt = true;
    Conversation asked = conversation;
    asked.messages.resize(turn - 1);
    return format.render(asked, options).text == before;
}

std::string span_text(const Rendered& rendered, std::size_t i) {
    const ByteRange& span = rendered.spans.at(i);
    return rendered.text.substr(static_cast<std::size_t>(span.begin),
                                static_cast<std::size_t>(span.end - span.begin));
}

std::vector<std::int64_t> integers_of(const io::Json& json) {
    std::vector<std::int64_t> values;
    for (const io::Json& item : json.items()) {
        values.push_back(*item.to_integer());
    }
    return values;
}

// Ids, and the mask except at tokens that lie partly outside a span.
void check_tokens(const Tokenizer& tokenizer, const Rendered& rendered, const io::Json& c) {
    const Encoding encoding = tokenizer.encode(rendered.text, /*with_ranges=*/true);
    CHECK(std::vector<std::int64_t>(encoding.ids.begin(), encoding.ids.end()) ==
          integers_of(*c.find("ids")));
    const std::vector<std::uint8_t> mask = loss_mask(encoding, rendered.spans);
    std::vector<std::int64_t> found(mask.begin(), mask.end());
    const std::vector<std::int64_t> expected = integers_of(*c.find("assistant_mask"));
    REQUIRE(found.size() == expected.size());
    if (const io::Json* straddle = c.find("straddle")) {
        for (const std::int64_t token : integers_of(*straddle)) {
            const auto i = static_cast<std::size_t>(token);
            found.at(i) = expected.at(i);
        }
    }
    CHECK(found == expected);
}

void check_case(const ChatFormat& format, const Tokenizer* tokenizer, const io::Json& c) {
    const RenderOptions options = options_of(*c.find("options"));
    if (c.find("error") != nullptr) {
        CHECK_THROWS_AS(format.render(read_messages(*c.find("messages"), c.find("tools")), options),
                        Error);
        return;
    }
    const Conversation conversation = read_messages(*c.find("messages"), c.find("tools"));
    const Rendered rendered = format.render(conversation, options);
    CHECK(rendered.text == c.find("text")->as_string());
    CHECK(rendered.spans == spans_of(*c.find("spans")));
    if (const io::Json* ids = c.find("ids"); ids != nullptr && ids->is_array()) {
        REQUIRE(tokenizer != nullptr);
        check_tokens(*tokenizer, rendered, c);
    }
    if (const io::Json* matches = c.find("prompt_matches")) {
        CHECK(prompt_matches(format, conversation, options, rendered) == matches->as_bool());
    }
}

struct Golden {
    std::string_view cases;
    std::string_view family;
    std::string_view tokenizer;  // empty: the cases have no ids
    std::size_t num_cases;
};

constexpr std::array kGoldens = {
    Golden{"chat-smollm2", "smollm2", "smollm2-cut.json", 78},
    Golden{"chat-qwen2.5", "qwen2.5", "", 92},
    Golden{"chat-qwen3", "qwen3", "qwen3-cut.json", 112},
    Golden{"chat-qwen3-2507", "qwen3-2507", "qwen3-cut.json", 94},
    Golden{"chat-qwen3.5", "qwen3.5", "", 112},
    Golden{"chat-qwen3.5-small", "qwen3.5-small", "", 112},
    Golden{"chat-qwen3.6", "qwen3.6", "", 118},
    Golden{"chat-qwen3.8", "qwen3.8", "", 188},
    Golden{"chat-llama3.1", "llama3.1", "", 95},
    Golden{"chat-gpt-oss", "gpt-oss", "gpt-oss-cut.json", 97},
    Golden{"chat-gpt-oss-tools", "gpt-oss", "", 200},
};

// With marks of ChatML, for tests over all formats.
constexpr std::string_view kChatMlUser = "<|im_start|>user\n";

GenericMarks chatml_marks() {
    return {.begin = "",
            .system_start = "<|im_start|>system\n",
            .system_end = "<|im_end|>\n",
            .user_start = std::string(kChatMlUser),
            .user_end = "<|im_end|>\n",
            .assistant_start = "<|im_start|>assistant\n",
            .assistant_end = "<|im_end|>\n",
            .tool_start = "",
            .tool_end = ""};
}

}  // namespace

TEST_SUITE("data.chat_format") {
    TEST_CASE("chat_format: every family gives text, spans, ids and mask of the reference data") {
        const std::string folder = "test/golden/text/";
        for (const Golden& golden : kGoldens) {
            CAPTURE(golden.cases);
            const auto format = make_chat_format(golden.family);
            CHECK(format->name() == golden.family);
            std::optional<Tokenizer> tokenizer;
            if (!golden.tokenizer.empty()) {
                tokenizer = Tokenizer::from_file(folder + std::string(golden.tokenizer));
            }
            const std::vector<io::Json> cases =
                testing::read_cases(folder + std::string(golden.cases) + ".jsonl");
            CHECK(cases.size() == golden.num_cases);
            for (const io::Json& c : cases) {
                const std::string id = c.find("id")->as_string();
                CAPTURE(id);
                CHECK(c.find("family")->as_string() == golden.family);
                check_case(*format, tokenizer ? &*tokenizer : nullptr, c);
            }
        }
    }

    TEST_CASE("chat_format: finished text is trained where the model wrote it, else as a whole") {
        const std::string folder = "test/golden/text/";
        std::map<std::string, Tokenizer> tokenizers;
        for (const std::string family : {"smollm2", "qwen3"}) {
            tokenizers.emplace(family, Tokenizer::from_file(folder + family + "-cut.json"));
        }
        const std::vector<io::Json> cases = testing::read_cases(folder + "text-rows.jsonl");
        CHECK(cases.size() == 14);
        for (const io::Json& c : cases) {
            const std::string family = c.find("family")->as_string();
            Rendered rendered;
            rendered.text = c.find("text")->as_string();
            CAPTURE(rendered.text);
            rendered.spans = spans_of_text(*make_chat_format(family), rendered.text);
            CHECK(rendered.spans == spans_of(*c.find("spans")));
            check_tokens(tokenizers.at(family), rendered, c);
        }
    }

    TEST_CASE("chat_format: spans of rendered text are found again where turns are all trained") {
        // Without reasoning and calls, and without marks in content: then both ways must agree.
        const Conversation conversation = conversation_of(
            R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},
                {"role":"user","content":"c"},{"role":"assistant","content":"d"}])");
        for (const std::string& name : chat_format_names()) {
            CAPTURE(name);
            const auto format = make_chat_format(name, chatml_marks());
            const Rendered rendered = format->render(conversation, {});
            std::vector<ByteRange> found = spans_of_text(*format, rendered.text);
            REQUIRE(found.size() == 2);
            // The end of an earlier final message of gpt-oss is the template's, which text does
            // not tell.
            if (name == "gpt-oss") {
                found[0].end -= static_cast<std::int64_t>(std::string_view("<|end|>").size());
            }
            CHECK(found == rendered.spans);
        }
    }

    TEST_CASE("chat_format: a message that is not trained has no span, but the same text") {
        const std::string_view messages =
            R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},
                {"role":"user","content":"c"},{"role":"assistant","content":"d"}])";
        for (const std::string& name : chat_format_names()) {
            CAPTURE(name);
            const auto format = make_chat_format(name, chatml_marks());
            Conversation conversation = conversation_of(messages);
            const Rendered all = format->render(conversation, {});
            REQUIRE(all.spans.size() == 2);
            conversation.messages[1].train = false;
            const Rendered last = format->render(conversation, {});
            CHECK(last.text == all.text);
            REQUIRE(last.spans.size() == 1);
            CHECK(last.spans[0] == all.spans[1]);
            CHECK(span_text(last, 0).find('d') != std::string::npos);
            CHECK(span_text(last, 0).find('b') == std::string::npos);
        }
    }

    TEST_CASE("chat_format: qwen3 writes arguments as Python's json.dumps does") {
        struct Case {
            std::string_view json;
            std::string_view printed;
        };

        // Printed by Python 3.11: json.dumps(json.loads(x), ensure_ascii=False).
        for (const Case& c : std::vector<Case>{
                 {"1.0", "1.0"},
                 {"1e16", "1e+16"},
                 {"1e15", "1000000000000000.0"},
                 {"123456789012345680000", "123456789012345680000"},
                 {"123456789012345680000.0", "1.2345678901234568e+20"},
                 {"0.0001", "0.0001"},
                 {"0.00001", "1e-05"},
                 {"1.5E-7", "1.5e-07"},
                 {"5e-324", "5e-324"},
                 {"1.7976931348623157e308", "1.7976931348623157e+308"},
                 {"1e400", "Infinity"},
                 {"-1e400", "-Infinity"},
                 {"-0", "0"},
                 {"-0.0", "-0.0"},
                 {"0e5", "0.0"},
                 {"100.0", "100.0"},
                 {"12.50", "12.5"},
                 {"-12345.678", "-12345.678"},
                 {"0.1", "0.1"},
                 {"2e0", "2.0"},
                 {"1e-400", "0.0"},
                 {"9007199254740993.0", "9007199254740992.0"},
                 {"[ ]", "[]"},
                 {"{ }", "{}"},
                 {"[1,[2,{\"a\":null}],true,false]", "[1, [2, {\"a\": null}], true, false]"},
                 {R"("\u0000\u001f\u007f\u0080\u2028\/\"\\\b\f\n\r\t\ud83d\ude00")",
                  "\"\\u0000\\u001f\x7f\u0080\u2028/\\\"\\\\\\b\\f\\n\\r\\t\U0001F600\""},
                 {R"({"z":1,"a":{"y":2,"b":3}})", R"({"z": 1, "a": {"y": 2, "b": 3}})"},
             }) {
            CAPTURE(c.json);
            const std::string call =
                R"({"name":"f","arguments":{"x":)" + std::string(c.json) + R"(}})";
            const Conversation conversation =
                conversation_of(R"([{"role":"user","content":"q"},{"role":"assistant",)"
                                R"("tool_calls":[)" +
                                call + "]}]");
            const Rendered rendered = make_chat_format("qwen3")->render(conversation, {});
            const std::string expected =
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": " + std::string(c.printed) +
                "}}\n</tool_call><|im_end|>";
            REQUIRE(rendered.spans.size() == 1);
            CHECK(span_text(rendered, 0) == expected);
        }
    }

    TEST_CASE("chat_format: what a template leaves out is counted") {
        const auto qwen3 = make_chat_format("qwen3");
        const auto smollm2 = make_chat_format("smollm2");
        const std::string_view two_turns =
            R"([{"role":"user","content":"a"},
                {"role":"assistant","content":"b","reasoning_content":"r"},
                {"role":"user","content":"c"},
                {"role":"assistant","content":"d","reasoning_content":"s"}])";
        CHECK(qwen3->render(conversation_of(two_turns), {}).left_out ==
              LeftOut{.reasoning = 1, .text = 0, .tools = 0});
        CHECK(smollm2->render(conversation_of(two_turns, R"([{"name":"f"}])"), {}).left_out ==
              LeftOut{.reasoning = 2, .text = 0, .tools = 1});
        const auto lost = [&](const std::string& content) {
            return qwen3
                ->render(conversation_of(R"([{"role":"user","content":"a"},{"role":"assistant",)"
                                         R"("content":")" +
                                         content + "\"}]"),
                         {})
                .left_out.text;
        };
        CHECK(lost("<think>a</think>b") == 0);
        CHECK(lost("<think>a</think>b<think>c</think>d") == 1);
        CHECK(lost("before <think>a</think>b") == 1);
        CHECK(lost(" \\n<think>a</think>b") == 0);
        CHECK(lost("a</think>b") == 0);
    }

    TEST_CASE("chat_format: thinking is on for a last turn with reasoning, else off") {
        const auto served = [](const std::string& answer) {
            return make_chat_format("qwen3")->served_thinking(conversation_of(
                R"([{"role":"user","content":"a"},{"role":"assistant",)" + answer + "}]"));
        };
        CHECK(served(R"("content":"b")") == false);
        CHECK(served(R"("content":"b","reasoning_content":"")") == false);
        CHECK(served(R"("content":"b","reasoning_content":"\n")") == false);
        CHECK(served(R"("content":"b","reasoning_content":"r")") == true);
        CHECK(served(R"("content":"<think>r</think>b")") == true);
        CHECK(served(R"("content":"<think>\n\n</think>\n\nb")") == true);
        CHECK_FALSE(make_chat_format("qwen3")
                        ->served_thinking(conversation_of(R"([{"role":"user","content":"a"}])"))
                        .has_value());
        CHECK_FALSE(make_chat_format("smollm2")
                        ->served_thinking(conversation_of(R"([{"role":"user","content":"a"}])"))
                        .has_value());
    }

    TEST_CASE("chat_format: smollm2 refuses tool calls, qwen3 a role it would leave out") {
        const Conversation call = conversation_of(
            R"([{"role":"user","content":"a"},
                {"role":"assistant","tool_calls":[{"name":"f","arguments":{}}]}])");
        CHECK_THROWS_AS(make_chat_format("smollm2")->render(call, {}), Error);
        Conversation odd = conversation_of(R"([{"role":"user","content":"a"}])");
        odd.messages[0].role = "narrator";
        CHECK_THROWS_AS(make_chat_format("qwen3")->render(odd, {}), Error);
    }

    TEST_CASE("chat_format: an unknown name lists the known ones") {
        try {
            make_chat_format("chatml");
            FAIL("accepted");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Config);
            CHECK(error.parts().what.find("gpt-oss, llama3.1, qwen2.5, qwen3, qwen3-2507, "
                                          "qwen3.5, qwen3.5-small, qwen3.6, qwen3.8, smollm2, "
                                          "generic") != std::string::npos);
        }
    }
}

}  // namespace dflash::data
