// SPDX-License-Identifier: Apache-2.0
#include "golden_lines.hpp"

#include <dflash/core/error.hpp>
#include <dflash/data/conversation.hpp>

#include <algorithm>
#include <cctype>
#include <doctest/doctest.h>
#include <fmt/format.h>

namespace dflash::data {

namespace {

io::Json as_json(const Message& message) {
    io::Json json = io::Json::object();
    json.set("role", io::Json::string(message.role));
    json.set("content", io::Json::string(message.content));
    if (message.reasoning_content) {
        json.set("reasoning_content", io::Json::string(*message.reasoning_content));
    }
    if (!message.tool_calls.empty()) {
        std::vector<io::Json> calls;
        for (const ToolCall& call : message.tool_calls) {
            io::Json item = io::Json::object();
            item.set("name", io::Json::string(call.name));
            item.set("arguments", call.arguments);
            if (call.id) {
                item.set("id", io::Json::string(*call.id));
            }
            calls.push_back(item);
        }
        json.set("tool_calls", io::Json::array(std::move(calls)));
    }
    if (!message.train) {
        json.set("train", io::Json::boolean(false));
    }
    if (message.name) {
        json.set("name", io::Json::string(*message.name));
    }
    if (message.tool_call_id) {
        json.set("tool_call_id", io::Json::string(*message.tool_call_id));
    }
    return json;
}

io::Json as_json(const std::vector<Message>& messages) {
    std::vector<io::Json> items;
    items.reserve(messages.size());
    for (const Message& message : messages) {
        items.push_back(as_json(message));
    }
    return io::Json::array(std::move(items));
}

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
        return static_cast<char>(std::tolower(c));
    });
    return text;
}

void check_accepted(const RowResult& result, const io::Json& expected) {
    const std::string fault = result.fault ? result.fault->kind + ": " + result.fault->message : "";
    REQUIRE_MESSAGE(result.conversation.has_value(), fault);
    CHECK_FALSE(result.fault);
    const Conversation& conversation = *result.conversation;
    CHECK(conversation.is_prompt() == (expected.find("use")->as_string() == "prompt"));
    CHECK(as_json(conversation.messages).dump() == expected.find("messages")->dump());
    const io::Json* tools = expected.find("tools");
    CHECK((conversation.tools ? conversation.tools->dump() : "") == (tools ? tools->dump() : ""));
    std::vector<io::Json> later;
    for (const std::vector<Message>& turn : conversation.later_turns) {
        later.push_back(as_json(turn));
    }
    const io::Json* expected_later = expected.find("later_turns");
    CHECK(io::Json::array(later).dump() == (expected_later ? expected_later->dump() : "[]"));
}

void check_refused(const RowResult& result, const io::Json& expected) {
    REQUIRE(result.fault);
    CHECK_FALSE(result.conversation);
    const RowFault& fault = *result.fault;
    // That the cut line is the last one of the file is the reader's knowledge, not the line's.
    const std::string& kind = expected.find("kind")->as_string();
    CHECK(fault.kind == (kind == "truncated" ? "bad_json" : kind));
    CHECK(fault.ends_early == (kind == "truncated" ||
                               expected.find("reason")->as_string().starts_with("the line ends")));
    for (const io::Json& mention : expected.find("mentions")->items()) {
        if (kind != "truncated") {
            CAPTURE(fault.message);
            CHECK(lower(fault.message).find(lower(mention.as_string())) != std::string::npos);
        }
    }
}

RowFault fault_of(std::string_view line) {
    const RowResult result = read_row(line);
    REQUIRE_MESSAGE(result.fault.has_value(), line);
    CHECK_FALSE(result.conversation);
    return *result.fault;
}

Conversation accepted(std::string_view line) {
    const RowResult result = read_row(line);
    const std::string fault = result.fault ? result.fault->message : "";
    REQUIRE_MESSAGE(result.conversation.has_value(), fault);
    return *result.conversation;
}

}  // namespace

TEST_SUITE("data.conversation") {
    TEST_CASE("conversation: every row of the reference data is read or refused as it says") {
        const std::vector<std::string> lines = testing::read_lines("test/golden/rows/rows.jsonl");
        const std::vector<io::Json> expected =
            testing::read_cases("test/golden/rows/rows.expected.jsonl");
        int accepted_rows = 0;
        int refused_rows = 0;
        for (const io::Json& row : expected) {
            const std::int64_t number = *row.find("line")->to_integer();
            CAPTURE(number);
            REQUIRE(static_cast<std::size_t>(number) <= lines.size());
            const std::string& line = lines[static_cast<std::size_t>(number) - 1];
            const bool ok = row.find("ok")->as_bool();
            const std::string use = ok ? row.find("use")->as_string() : "";
            if (use == "blank") {
                CHECK(is_blank_line(line));
                continue;
            }
            CHECK_FALSE(is_blank_line(line));
            const RowResult result = read_row(line);
            const bool is_finished =
                line.find("{\"input_ids\"") == 0 || line.find("{\"text\"") == 0 || use == "text";
            if (is_finished) {
                // Finished text and token ids are no conversations.
                REQUIRE(result.fault);
                CHECK(result.fault->kind == "unsupported_row");
            } else if (ok) {
                check_accepted(result, row);
                ++accepted_rows;
            } else {
                check_refused(result, row);
                ++refused_rows;
            }
        }
        CHECK(accepted_rows >= 70);
        CHECK(refused_rows >= 45);
    }

    TEST_CASE("conversation: a fault names the place and what was found") {
        struct Case {
            std::string_view line;
            std::string_view kind;
            std::string_view mention;
        };

        for (const Case& c : std::vector<Case>{
                 {R"({"messages":[{"role":"user","content":"a"},{"role":"x\ny","content":"b"}]})",
                  "unknown_role",
                  R"(messages[1].role is "x\x0ay")"},
                 {R"({"messages":[{"role":"user","content":[{"type":"text","text":7}]}]})",
                  "wrong_type",
                  "messages[0].content[0].text is the number 7, not text"},
                 {R"({"messages":[{"role":"user","content":[{"text":"a"}]}]})",
                  "unsupported_part",
                  "messages[0].content[0] has no type"},
                 {R"({"messages":[{"role":"user","content":[3]}]})",
                  "wrong_type",
                  "messages[0].content[0] is the number 3"},
                 {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant",)"
                  R"("content":"b","weight":0.5}]})",
                  "wrong_type",
                  "messages[1].weight is the number 0.5, not 0 or 1"},
                 {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant",)"
                  R"("content":"b","reasoning":{"x":1}}]})",
                  "wrong_type",
                  "messages[1].reasoning is an object"},
                 {R"({"messages":[{"role":"user","content":"a","tool_calls":[)"
                  R"({"name":"f","arguments":{}}]}]})",
                  "bad_tool_call",
                  "messages[0] is a user message with tool calls"},
                 {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant",)"
                  R"("tool_calls":[{"function":{"name":"f"}}]}]})",
                  "bad_tool_call",
                  "messages[1].tool_calls[0].function has no arguments"},
                 {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant",)"
                  R"("tool_calls":[{"name":"f","arguments":[1]}]}]})",
                  "bad_tool_call",
                  "messages[1].tool_calls[0].arguments is a list"},
                 {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant",)"
                  R"("tool_calls":[{"name":"f","arguments":{"k":1,"o":{"z":1,"z":2}}}]}]})",
                  "duplicate_key",
                  "the key z stands more than once in messages[1].tool_calls[0].arguments.o"},
                 {R"({"conversations":[{"from":"human","value":"a"},)"
                  R"({"from":"function_call","value":"f 1"}]})",
                  "bad_tool_call",
                  "conversations[1].value is not the JSON of a call"},
                 {R"({"conversations":[{"from":"human","value":"a"},)"
                  R"({"from":"tool_call","value":"[]"}]})",
                  "bad_tool_call",
                  "conversations[1].value is an empty list of calls"},
                 {R"({"messages":[{"role":"user","content":"a"}],"tools":[{"a":1},"f"]})",
                  "wrong_type",
                  "tools[1] is text, not an object"},
                 {R"({"prompt":"a","response":"b","history":[["x"]]})", "wrong_type", "history[0]"},
                 {R"({"prompt":[{"role":"user","content":"a"}],"input":"c","response":"b"})",
                  "wrong_type",
                  "input stands beside prompt"},
                 {R"({"instruction":"a","input":{"k":1},"output":"b"})",
                  "wrong_type",
                  "input is an object, not text"},
                 {R"({"prompt":["a","b"],"response":"c"})",
                  "wrong_type",
                  "prompt is a list of texts"},
                 {R"({"prompt":[],"response":"c"})", "empty_messages", "prompt is empty"},
                 {R"({"question":[[],[]]})", "empty_messages", "question holds only empty turns"},
                 {R"({"turns":["a"," \t"]})", "empty_prompt", "turns[1] is only white space"},
                 {R"({"prompt":"\u3000\u001c","response":"c"})",
                  "empty_prompt",
                  "prompt is only white space"},
                 {R"({"question":[[{"role":"user","content":"a"}],)"
                  R"([{"role":"user","content":"b"}]],"answer":"c"})",
                  "wrong_type",
                  "answer stands beside a question of several turns"},
                 {R"({"prompt":"a","chosen":[{"role":"user","content":"z"},)"
                  R"({"role":"assistant","content":"b"}]})",
                  "bad_message",
                  "chosen[0] is a user message"},
                 {R"({"conversation":[{"input":"a"},{"input":"b","output":"c"}]})",
                  "bad_message",
                  "conversation[0] has a question (input) but no answer"},
                 {R"({"data":["a",2]})", "wrong_type", "data[1] is the number 2"},
                 {R"([])", "empty_messages", "the row is an empty list"},
                 {R"([{"prompt":"a","response":"b"},{"prompt":"c","response":"d"}])",
                  "bad_message",
                  "row[0] has no role"},
                 {R"([1])", "wrong_type", "row[0] is the number 1"},
             }) {
            CAPTURE(c.line);
            const RowFault fault = fault_of(c.line);
            CHECK(fault.kind == c.kind);
            CAPTURE(fault.message);
            CHECK(fault.message.find(c.mention) != std::string::npos);
        }
    }

    TEST_CASE("conversation: a fault of JSON has its column and its usual cause") {
        struct Case {
            std::string_view line;
            std::int64_t column;
            std::string_view mention;
        };

        for (const Case& c : std::vector<Case>{
                 {R"({'prompt': 'a'})", 2, "Python dict"},
                 {R"({"prompt": "a", "score": None})", 26, "Python dict"},
                 {R"({"prompt": "a", "response": "b",})", 33, "a comma before the closing bracket"},
                 {R"({"a": "b"} {"a": "c"})", 12, "two rows on one line"},
                 {"prompt,response", 1, "CSV"},
                 {"  \t{\"a\": \xc3\xa9}", 10, "not JSON"},
                 {"\xef\xbb\xbf{\"a\" 1}", 7, "not JSON"},
             }) {
            CAPTURE(c.line);
            const RowFault fault = fault_of(c.line);
            CHECK(fault.kind == "bad_json");
            CHECK(fault.column == c.column);
            CAPTURE(fault.message);
            CHECK(fault.message.find(c.mention) != std::string::npos);
        }
    }

    TEST_CASE("conversation: every prefix of a row is refused, and ends early") {
        const std::string line =
            R"({"messages": [{"role": "user", "content": "\u00e9\ud83d\ude00 \"x\""}, )"
            R"({"role": "assistant", "content": "yes", "weight": 1.5e0, "n": null}], "t": true})";
        for (std::size_t size = 1; size < line.size(); ++size) {
            CAPTURE(size);
            const RowFault fault = fault_of(std::string_view(line).substr(0, size));
            CHECK(fault.kind == "bad_json");
            CHECK(fault.ends_early);
        }
    }

    TEST_CASE("conversation: broken bytes anywhere never pass and never crash") {
        const std::string line =
            R"({"prompt": "a b", "response": "c", "history": [["q", "a"]], "tools": []})";
        REQUIRE(read_row(line).conversation);
        for (std::size_t at = 0; at < line.size(); ++at) {
            for (const int byte : {0x00, 0x01, 0x1f, 0x80, 0xc0, 0xed, 0xff}) {
                std::string broken = line;
                broken[at] = static_cast<char>(byte);
                CAPTURE(at);
                CAPTURE(byte);
                const RowFault fault = fault_of(broken);
                CHECK(fault.kind == (byte == 0     ? "nul_byte"
                                     : byte < 0x80 ? "bad_json"
                                                   : "bad_utf8"));
                CHECK(fault.column == static_cast<std::int64_t>(at) + 1);
            }
        }
    }

    TEST_CASE("conversation: an answer that repeats the question is taken once") {
        const Conversation conversation =
            accepted(R"({"prompt":"q","chosen":[{"role":"user","content":"q"},)"
                     R"({"role":"assistant","content":"a"}]})");
        REQUIRE(conversation.messages.size() == 2);
        CHECK(conversation.messages[0].role == "user");
        CHECK(conversation.messages[1].content == "a");
    }

    TEST_CASE("conversation: input and context both follow a question") {
        const Conversation conversation =
            accepted(R"({"instruction":"do","input":"x","context":"y","output":"z","system":""})");
        REQUIRE(conversation.messages.size() == 2);
        CHECK(conversation.messages[0].content == "do\n\nx\n\ny");
    }

    TEST_CASE("conversation: history stands after a system message of the question") {
        const Conversation conversation =
            accepted(R"({"prompt":[{"role":"system","content":"s"},{"role":"user","content":"q"}],)"
                     R"("history":[["h","i"]],"response":"a"})");
        std::string roles;
        for (const Message& message : conversation.messages) {
            roles += message.role + " ";
        }
        CHECK(roles == "system user assistant user assistant ");
    }

    TEST_CASE("conversation: a list of calls as text becomes calls") {
        const Conversation conversation = accepted(
            R"({"conversations":[{"from":"human","value":"w"},{"from":"tool_call","value":)"
            R"("[{\"name\":\"f\",\"arguments\":{\"a\":1}},{\"name\":\"g\",\"arguments\":\"x\"}]"}]})");
        const Message& call = conversation.messages.back();
        CHECK(call.role == "assistant");
        CHECK(call.content.empty());
        REQUIRE(call.tool_calls.size() == 2);
        CHECK(call.tool_calls[0].arguments.dump() == R"({"a": 1})");
        CHECK(call.tool_calls[1].arguments.as_string() == "x");
    }

    TEST_CASE("conversation: read_messages does not judge turns, but refuses faults") {
        const io::Json empty_answer = io::Json::parse(
            R"([{"role":"user","content":""},{"role":"assistant","content":""}])", "");
        CHECK(read_messages(empty_answer, nullptr).messages.size() == 2);
        const io::Json bad = io::Json::parse(R"([{"role":"user"}])", "");
        CHECK_THROWS_WITH_AS(read_messages(bad, nullptr), "messages[0] has no content.", Error);
    }
}

}  // namespace dflash::data
