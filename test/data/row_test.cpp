// SPDX-License-Identifier: Apache-2.0
#include "golden_lines.hpp"

#include <dflash/core/error.hpp>
#include <dflash/data/row.hpp>

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

io::Json list_of(const std::vector<std::int64_t>& values) {
    std::vector<io::Json> items;
    for (const std::int64_t value : values) {
        items.push_back(io::Json::integer(value));
    }
    return io::Json::array(std::move(items));
}

// In the form of the reference data.
io::Json as_json(const Row& row) {
    io::Json json = io::Json::object();
    if (const auto* text = std::get_if<FinishedText>(&row.content)) {
        json.set("use", io::Json::string("text"));
        json.set("text", io::Json::string(text->text));
        return json;
    }
    if (const auto* tokens = std::get_if<FinishedTokens>(&row.content)) {
        json.set("use", io::Json::string("tokens"));
        json.set("input_ids", list_of({tokens->ids.begin(), tokens->ids.end()}));
        json.set("loss_mask",
                 tokens->loss_mask ? list_of({tokens->loss_mask->begin(), tokens->loss_mask->end()})
                                   : io::Json());
        return json;
    }
    const auto& conversation = std::get<Conversation>(row.content);
    json.set("use", io::Json::string(conversation.is_prompt() ? "prompt" : "train"));
    json.set("messages", as_json(conversation.messages));
    if (conversation.tools) {
        json.set("tools", *conversation.tools);
    }
    std::vector<io::Json> later;
    for (const std::vector<Message>& turn : conversation.later_turns) {
        later.push_back(as_json(turn));
    }
    if (!later.empty()) {
        json.set("later_turns", io::Json::array(std::move(later)));
    }
    return json;
}

void check_accepted(const RowResult& result, const io::Json& expected) {
    const std::string fault = result.fault ? result.fault->kind + ": " + result.fault->message : "";
    REQUIRE_MESSAGE(result.row.has_value(), fault);
    CHECK_FALSE(result.fault);
    const io::Json found = as_json(*result.row);
    for (const char* key :
         {"use", "messages", "tools", "later_turns", "text", "input_ids", "loss_mask"}) {
        CAPTURE(key);
        const io::Json* value = found.find(key);
        const io::Json* golden = expected.find(key);
        CHECK((value != nullptr ? value->dump() : "") == (golden != nullptr ? golden->dump() : ""));
    }
}

void check_refused(const RowResult& result, const io::Json& expected) {
    REQUIRE(result.fault);
    CHECK_FALSE(result.row);
    const RowFault& fault = *result.fault;
    const std::string& kind = expected.find("kind")->as_string();
    CHECK(fault.kind == kind);
    CHECK(fault.ends_early == (kind == "truncated" ||
                               expected.find("reason")->as_string().starts_with("the line ends")));
    for (const io::Json& mention : expected.find("mentions")->items()) {
        CAPTURE(fault.message);
        CHECK(lower(fault.message).find(lower(mention.as_string())) != std::string::npos);
    }
}

RowFault fault_of(std::string_view line) {
    const RowResult result = read_row(line);
    REQUIRE_MESSAGE(result.fault.has_value(), line);
    CHECK_FALSE(result.row);
    return *result.fault;
}

Conversation accepted(std::string_view line) {
    const RowResult result = read_row(line);
    const std::string fault = result.fault ? result.fault->message : "";
    REQUIRE_MESSAGE(result.row.has_value(), fault);
    REQUIRE(std::holds_alternative<Conversation>(result.row->content));
    return std::get<Conversation>(result.row->content);
}

Row read(std::string_view line) {
    const RowResult result = read_row(line);
    const std::string fault = result.fault ? result.fault->message : "";
    REQUIRE_MESSAGE(result.row.has_value(), fault);
    return *result.row;
}

}  // namespace

TEST_SUITE("data.row") {
    TEST_CASE("row: every row of the reference data is read or refused as it says") {
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
            const bool is_last = static_cast<std::size_t>(number) == lines.size();
            const RowResult result = read_row(line, is_last);
            if (ok) {
                check_accepted(result, row);
                ++accepted_rows;
            } else {
                check_refused(result, row);
                ++refused_rows;
            }
        }
        CHECK(accepted_rows == 80);
        CHECK(refused_rows == 58);
    }

    TEST_CASE("row: a fault names the place and what was found") {
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

    TEST_CASE("row: a fault of JSON has its column and its usual cause") {
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

    TEST_CASE("row: every prefix of a row is refused, and ends early") {
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

    TEST_CASE("row: broken bytes anywhere never pass and never crash") {
        const std::string line =
            R"({"prompt": "a b", "response": "c", "history": [["q", "a"]], "tools": []})";
        REQUIRE(read_row(line).row);
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

    TEST_CASE("row: an answer that repeats the question is taken once") {
        const Conversation conversation =
            accepted(R"({"prompt":"q","chosen":[{"role":"user","content":"q"},)"
                     R"({"role":"assistant","content":"a"}]})");
        REQUIRE(conversation.messages.size() == 2);
        CHECK(conversation.messages[0].role == "user");
        CHECK(conversation.messages[1].content == "a");
    }

    TEST_CASE("row: input and context both follow a question") {
        const Conversation conversation =
            accepted(R"({"instruction":"do","input":"x","context":"y","output":"z","system":""})");
        REQUIRE(conversation.messages.size() == 2);
        CHECK(conversation.messages[0].content == "do\n\nx\n\ny");
    }

    TEST_CASE("row: history stands after a system message of the question") {
        const Conversation conversation =
            accepted(R"({"prompt":[{"role":"system","content":"s"},{"role":"user","content":"q"}],)"
                     R"("history":[["h","i"]],"response":"a"})");
        std::string roles;
        for (const Message& message : conversation.messages) {
            roles += message.role + " ";
        }
        CHECK(roles == "system user assistant user assistant ");
    }

    TEST_CASE("row: a list of calls as text becomes calls") {
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

    TEST_CASE("row: the shape has a name, and fields that nobody reads are listed") {
        struct Case {
            std::string_view line;
            std::string_view shape;
            std::vector<std::string> ignored;
        };

        for (
            const Case& c : std::vector<Case>{
                {R"({"messages":[{"role":"user","content":"a","mood":1},)"
                 R"({"role":"assistant","content":"b","mood":2,"logprobs":null}],"id":7,"text":"x"})",
                 "messages",
                 {"messages[].mood", "id", "text"}},
                {R"({"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}],)"
                 R"("system":"s","source":null})",
                 "conversations (from, value)",
                 {}},
                {R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"}],)"
                 R"("system":"other"})",
                 "messages",
                 {"system"}},
                {R"({"problem":"a","solution":"b","answer":"c","input":"d"})",
                 "problem + solution",
                 {"answer"}},
                {R"({"prompt":"a","rejected":"b"})", "prompt", {"rejected"}},
                {R"({"input_ids":[1,2],"labels":[-100,2],"loss_mask":[0,1],"token_type_ids":[]})",
                 "input_ids + loss_mask",
                 {"labels", "token_type_ids"}},
                {R"({"text":"a","meta":{}})", "text", {"meta"}},
                {R"({"turns":["a"],"category":"b"})", "turns", {"category"}},
                {R"([{"role":"user","content":"a"}])", "a list of messages", {}},
                {R"({"data":["a","b"],"id":"x","id":"y"})", "data", {"id"}},
            }) {
            CAPTURE(c.line);
            const Row row = read(c.line);
            CHECK(row.shape == c.shape);
            CHECK(row.ignored == c.ignored);
        }
    }

    TEST_CASE("row: tool calls and results are read in every form of OpenAI's formats") {
        const auto calls = [](std::string_view assistant) {
            const Conversation conversation = accepted(
                fmt::format(R"({{"messages":[{{"role":"user","content":"w"}},{}]}})", assistant));
            std::string text;
            for (const ToolCall& call : conversation.messages.back().tool_calls) {
                text += fmt::format(
                    "{}({})#{};", call.name, call.arguments.dump(), call.id.value_or("-"));
            }
            return text;
        };
        CHECK(calls(R"({"role":"assistant","content":null,"tool_calls":[{"id":"1","type":)"
                    R"("function","function":{"name":"f","arguments":"{\"a\": 1}"}}]})") ==
              R"(f("{\"a\": 1}")#1;)");
        CHECK(calls(R"({"role":"assistant","tool_calls":"[{\"name\":\"f\",\"arguments\":{}}]"})") ==
              "f({})#-;");
        CHECK(calls(R"({"role":"assistant","content":null,"tool_calls":[],)"
                    R"("function_call":{"name":"g","arguments":{"b":2}}})") == R"(g({"b": 2})#-;)");
        CHECK(calls(R"({"type":"function_call","call_id":"c","name":"h","arguments":"{}"})") ==
              R"(h("{}")#c;)");

        const Conversation result =
            accepted(R"({"messages":[{"role":"user","content":"w"},)"
                     R"({"type":"function_call","call_id":"c","name":"h","arguments":"{}"},)"
                     R"({"type":"function_call_output","call_id":"c","output":"18"}]})");
        CHECK(result.messages.back().role == "tool");
        CHECK(result.messages.back().content == "18");
        CHECK(result.messages.back().tool_call_id == "c");
        CHECK(result.is_prompt());

        const Conversation parts = accepted(
            R"({"messages":[{"role":"user","content":[{"type":"input_text","text":"a"}]},)"
            R"({"role":"tool","content":[{"type":"text","text":"1"},{"type":"text","text":"8"}]},)"
            R"({"role":"assistant","content":[{"type":"output_text","text":"b"},)"
            R"({"type":"refusal","refusal":"c"}]}]})");
        CHECK(parts.messages[1].content == "18");
        CHECK(parts.messages[2].content == "bc");
    }

    TEST_CASE("row: tools may be a list, a list as text, or functions of the older format") {
        const std::string tool = R"({"type": "function", "function": {"name": "f"}})";
        for (const std::string& field : {
                 R"("tools":[)" + tool + "]",
                 std::string(
                     R"("tools":"[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]")"),
                 std::string(R"("functions":[{"name":"f"}])"),
             }) {
            CAPTURE(field);
            const Row row = read(fmt::format(R"({{"prompt":"a","response":"b",{}}})", field));
            const auto& conversation = std::get<Conversation>(row.content);
            REQUIRE(conversation.tools);
            CHECK(conversation.tools->dump() == "[" + tool + "]");
            CHECK(row.ignored.empty());
        }
        // Rows with and without tools may stand in one file.
        CHECK_FALSE(accepted(R"({"prompt":"a","response":"b","tools":[]})").tools);
        CHECK_FALSE(accepted(R"({"prompt":"a","response":"b","tools":null})").tools);
    }

    TEST_CASE("row: finished tokens with a mask that cannot be theirs are refused") {
        struct Case {
            std::string_view line;
            std::string_view kind;
            std::string_view mention;
        };

        for (const Case& c : std::vector<Case>{
                 {R"({"input_ids":[1,2,3],"labels":[-100,3,4]})",
                  "bad_mask",
                  "labels[1] is 3 where input_ids[1] is 2"},
                 {R"({"input_ids":[1,2,3],"labels":[-100,2,-1]})", "bad_mask", "labels[2] is -1"},
                 {R"({"input_ids":[1,2],"loss_mask":[0,"1"]})", "bad_mask", "loss_mask[1] is text"},
                 {R"({"input_ids":[1,2],"attention_mask":[1],"loss_mask":[0,1]})",
                  "bad_mask",
                  "attention_mask has 1 entries, input_ids has 2"},
                 {R"({"input_ids":[[1,2],[3,4]]})", "wrong_type", "input_ids holds 2 lists"},
                 {R"({"input_ids":"1 2"})", "wrong_type", "input_ids is text, not a list"},
                 {R"({"input_ids":[1,4294967296]})", "wrong_type", "input_ids[1] is 4294967296"},
                 {R"({"input_ids":[1,2],"attention_mask":[0,0]})", "empty_text", "input_ids"},
                 {R"({"text":" \n"})", "empty_text", "text is only white space"},
                 {R"({"text":["a"]})", "wrong_type", "text is a list of texts"},
             }) {
            CAPTURE(c.line);
            const RowFault fault = fault_of(c.line);
            CHECK(fault.kind == c.kind);
            CAPTURE(fault.message);
            CHECK(fault.message.find(c.mention) != std::string::npos);
        }
    }

    TEST_CASE("row: a value over many lines is read, and a fault has its line and column") {
        CHECK(accepted("{\n  \"prompt\": \"a\",\n  \"response\": \"b\"\n}").messages.size() == 2);
        const RowFault fault = fault_of("  {\n  \"prompt\": \"a\",\n    None\n}");
        CHECK(fault.kind == "bad_json");
        CHECK(fault.line == 2);
        CHECK(fault.column == 5);
    }

    TEST_CASE("row: read_messages does not judge turns, but refuses faults") {
        const io::Json empty_answer = io::Json::parse(
            R"([{"role":"user","content":""},{"role":"assistant","content":""}])", "");
        CHECK(read_messages(empty_answer, nullptr).messages.size() == 2);
        const io::Json bad = io::Json::parse(R"([{"role":"user"}])", "");
        CHECK_THROWS_WITH_AS(read_messages(bad, nullptr), "messages[0] has no content.", Error);
    }
}

}  // namespace dflash::data
