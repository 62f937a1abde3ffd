// SPDX-License-Identifier: Apache-2.0
#include "message_reader.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>

namespace dflash::data {

namespace {

// The role of a message that is itself a call (ShareGPT with tools).
constexpr std::string_view kCallRole = "call";

// Names of roles in OpenAI, ShareGPT, Alpaca-like and tool-calling data sets.
std::string normal_role(std::string_view given, const std::string& place) {
    static const std::map<std::string_view, std::string_view> known_roles = {
        {"system", "system"},     {"developer", "system"},       {"user", "user"},
        {"human", "user"},        {"assistant", "assistant"},    {"gpt", "assistant"},
        {"chatgpt", "assistant"}, {"model", "assistant"},        {"bot", "assistant"},
        {"ai", "assistant"},      {"bing", "assistant"},         {"bard", "assistant"},
        {"tool", "tool"},         {"function", "tool"},          {"ipython", "tool"},
        {"observation", "tool"},  {"function_response", "tool"}, {"function_call", kCallRole},
        {"tool_call", kCallRole},
    };
    std::string lower(given);
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) {
        return static_cast<char>(std::tolower(c));
    });
    const auto found = known_roles.find(lower);
    if (found == known_roles.end()) {
        refuse("unknown_role",
               "{} is {}; known are system, user, assistant, tool and their usual other names",
               place,
               quote(given, 40));
    }
    return std::string(found->second);
}

std::string read_part(const io::Json& part, const std::string& place) {
    if (part.is_string()) {
        return part.as_string();
    }
    if (!part.is_object()) {
        refuse("wrong_type", "{} is {}, not a part of a message", place, describe_found(part));
    }
    const Field type = first_field(part, {"type"}, place);
    if (!type) {
        // Not guessed, although `text` may be there.
        refuse("unsupported_part", "{} has no type; only text can be trained on", place);
    }
    const std::string& name = text_of(type);
    if (name == "refusal") {
        // What OpenAI's models write when they decline; the model's own words all the same.
        if (const Field refusal = first_field(part, {"refusal"}, place)) {
            return text_of(refusal);
        }
    }
    if (name != "text" && name != "input_text" && name != "output_text") {
        refuse("unsupported_part",
               "{} is a part of type {}; only text can be trained on",
               place,
               quote(name, 40));
    }
    const Field text = first_field(part, {"text"}, place);
    if (!text) {
        refuse("bad_message", "{} has no text", place);
    }
    return text_of(text);
}

// Text parts are joined with nothing between, as the chat templates that take parts do.
std::string read_content(const Field& field) {
    if (!field.value->is_array()) {
        return text_of(field);
    }
    std::string content;
    for (std::size_t i = 0; i < field.value->items().size(); ++i) {
        content += read_part(field.value->items()[i], fmt::format("{}[{}]", field.place, i));
    }
    return content;
}

ToolCall read_tool_call(const io::Json& json, const std::string& place) {
    if (!json.is_object()) {
        refuse("bad_tool_call", "{} is {}, not an object", place, describe_found(json));
    }
    ToolCall call;
    const Field wrapper = first_field(json, {"function"}, place);
    // OpenAI wraps name and arguments in `function`; others do not.
    const bool is_wrapped = wrapper && wrapper.value->is_object();
    const io::Json& inner = is_wrapped ? *wrapper.value : json;
    const std::string inner_place = is_wrapped ? wrapper.place : place;
    const Field name = first_field(inner, {"name"}, inner_place);
    if (!name) {
        refuse("bad_tool_call", "{} has no name", inner_place);
    }
    if (!name.value->is_string()) {
        refuse("bad_tool_call", "{} is {}, not text", name.place, describe_found(*name.value));
    }
    call.name = name.value->as_string();
    const Field arguments = first_field(inner, {"arguments"}, inner_place);
    if (!arguments) {
        refuse("bad_tool_call", "{} has no arguments", inner_place);
    }
    if (!arguments.value->is_object() && !arguments.value->is_string()) {
        refuse("bad_tool_call",
               "{} is {}, not an object or text",
               arguments.place,
               describe_found(*arguments.value));
    }
    refuse_duplicate_keys(*arguments.value, arguments.place);
    call.arguments = *arguments.value;
    if (const Field id = first_field(json, {"id"}, place)) {
        if (!id.value->is_string()) {
            refuse("bad_tool_call", "{} is {}, not text", id.place, describe_found(*id.value));
        }
        call.id = id.value->as_string();
    }
    return call;
}

std::vector<ToolCall> read_call_list(const io::Json& list, const std::string& place) {
    std::vector<ToolCall> calls;
    for (std::size_t i = 0; i < list.items().size(); ++i) {
        calls.push_back(read_tool_call(list.items()[i], fmt::format("{}[{}]", place, i)));
    }
    return calls;
}

// `tool_calls` (a list, or text that holds one), or the single `function_call` of OpenAI's older
// format.
std::vector<ToolCall> read_tool_calls(const io::Json& json, const std::string& place) {
    std::vector<ToolCall> calls;
    if (const Field list = first_field(json, {"tool_calls"}, place)) {
        calls = read_call_list(list_of(list, "bad_tool_call"), list.place);
    }
    const Field old = first_field(json, {"function_call"}, place);
    if (old && calls.empty()) {
        calls.push_back(read_tool_call(*old.value, old.place));
    }
    return calls;
}

// The text of a message whose role says that it is a call: JSON of one call or of a list of them.
std::vector<ToolCall> read_call_text(const std::string& text, const std::string& place) {
    io::Json json;
    try {
        json = io::Json::parse(text, place);
    } catch (const Error&) {
        refuse("bad_tool_call", "{} is not the JSON of a call: {}", place, quote(text, 40));
    }
    if (!json.is_array()) {
        return {read_tool_call(json, place)};
    }
    if (json.items().empty()) {
        refuse("bad_tool_call", "{} is an empty list of calls", place);
    }
    return read_call_list(json, place);
}

// OpenAI's fine-tuning format: 0 or 1. A fraction would have to scale the loss, which is not done.
bool read_weight(const io::Json& json, const std::string& place) {
    const Field weight = first_field(json, {"weight"}, place);
    if (!weight) {
        return true;
    }
    const bool is_number = weight.value->is_number();
    if (is_number && weight.value->to_double() == 0) {
        return false;
    }
    if (is_number && weight.value->to_double() == 1) {
        return true;
    }
    refuse("wrong_type", "{} is {}, not 0 or 1", weight.place, describe_found(*weight.value));
}

// The optional texts of a message; other values of `name` and `tool_call_id` mean nothing.
void read_extras(const io::Json& json, const std::string& place, Message& message) {
    if (const Field reasoning =
            first_field(json, {"reasoning_content", "reasoning", "thinking"}, place)) {
        message.reasoning_content = text_of(reasoning);
    }
    if (const Field name = first_field(json, {"name"}, place); name && name.value->is_string()) {
        message.name = name.value->as_string();
    }
    if (const Field id = first_field(json, {"tool_call_id"}, place); id && id.value->is_string()) {
        message.tool_call_id = id.value->as_string();
    }
}

// An item of OpenAI's Responses format, which has a type where messages have a role.
std::optional<Message> read_item(const io::Json& json, const std::string& place) {
    const Field type = first_field(json, {"type"}, place);
    const bool is_call = type && *type.value == io::Json::string("function_call");
    const bool is_result = type && *type.value == io::Json::string("function_call_output");
    if (!is_call && !is_result) {
        return std::nullopt;
    }
    Message message;
    const Field id = first_field(json, {"call_id"}, place);
    if (is_call) {
        message.role = "assistant";
        message.content_is_null = true;
        message.tool_calls.push_back(read_tool_call(json, place));
        if (id) {
            message.tool_calls.back().id = text_of(id);
        }
        return message;
    }
    message.role = "tool";
    const Field output = first_field(json, {"output"}, place);
    if (!output) {
        refuse("bad_message", "{} has no output", place);
    }
    message.content = read_content(output);
    if (id) {
        message.tool_call_id = text_of(id);
    }
    return message;
}

void note_ignored(const io::Json& json, std::vector<std::string>& ignored) {
    static const std::set<std::string_view> read = {"role",
                                                    "from",
                                                    "content",
                                                    "value",
                                                    "text",
                                                    "tool_calls",
                                                    "function_call",
                                                    "weight",
                                                    "reasoning_content",
                                                    "reasoning",
                                                    "thinking",
                                                    "name",
                                                    "tool_call_id",
                                                    "type"};
    for (const auto& [key, value] : json.members()) {
        if (read.count(key) == 0 && !value.is_null()) {
            add_once(ignored, "messages[]." + key);
        }
    }
}

}  // namespace

Message read_message(const io::Json& json,
                     const std::string& place,
                     std::vector<std::string>& ignored) {
    if (!json.is_object()) {
        refuse("wrong_type", "{} is {}, not an object", place, describe_found(json));
    }
    const Field role = first_field(json, {"role", "from"}, place);
    if (!role) {
        if (std::optional<Message> item = read_item(json, place)) {
            return *std::move(item);
        }
        refuse("bad_message", "{} has no role", place);
    }
    Message message;
    message.role = normal_role(text_of(role), role.place);
    const bool is_call = message.role == kCallRole;
    message.role = is_call ? "assistant" : message.role;
    message.train = read_weight(json, place);
    message.tool_calls = read_tool_calls(json, place);
    if (!message.tool_calls.empty() && message.role != "assistant") {
        refuse("bad_tool_call", "{} is a {} message with tool calls", place, message.role);
    }

    // A message that only calls tools has no content.
    const Field content = first_field(json, {"content", "value", "text"}, place);
    if (!content && message.tool_calls.empty()) {
        refuse("bad_message", "{} has no content", place);
    }
    message.content_is_null = !content;
    if (content) {
        message.content = read_content(content);
    }
    if (is_call && message.tool_calls.empty()) {
        message.tool_calls = read_call_text(message.content, content.place);
        message.content.clear();
    }
    read_extras(json, place, message);
    note_ignored(json, ignored);
    return message;
}

std::vector<Message> read_message_list(const io::Json& list,
                                       const std::string& place,
                                       std::vector<std::string>& ignored) {
    std::vector<Message> messages;
    messages.reserve(list.items().size());
    for (std::size_t i = 0; i < list.items().size(); ++i) {
        messages.push_back(read_message(list.items()[i], fmt::format("{}[{}]", place, i), ignored));
    }
    return messages;
}

}  // namespace dflash::data
