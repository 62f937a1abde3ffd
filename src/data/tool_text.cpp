// SPDX-License-Identifier: Apache-2.0
#include "tool_text.hpp"

#include "python_text.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>

#include <fmt/format.h>

namespace dflash::data {

io::Json arguments_object(const ToolCall& call) {
    if (!call.arguments.is_string()) {
        return call.arguments;
    }
    try {
        io::Json parsed = io::Json::parse(call.arguments.as_string(), "");
        if (parsed.is_object()) {
            return parsed;
        }
    } catch (const io::JsonError&) {
        // Told below, with the text.
    }
    throw Error(ErrorKind::Data,
                {.what = fmt::format("the arguments of the call of {} are the text {}, which is "
                                     "not the JSON of an object",
                                     quote(call.name, 40),
                                     quote(call.arguments.as_string(), 40)),
                 .where = {},
                 .cause = {},
                 .hint = {}});
}

void write_json_tools(RenderedText& out, const io::Json& tools) {
    out << "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
           "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
    for (const io::Json& tool : tools.items()) {
        out << "\n" << python_json(tool);
    }
    out << "\n</tools>\n\nFor each function call, return a json object with function name and "
           "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
           "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n"
           "</tool_call><|im_end|>\n";
}

void write_json_call(RenderedText& out, const ToolCall& call, std::string_view arguments) {
    out << "<tool_call>\n{\"name\": \"" << call.name << "\", \"arguments\": " << arguments
        << "}\n</tool_call>";
}

void write_tool_response(RenderedText& out,
                         const std::vector<Message>& messages,
                         std::size_t i,
                         std::string_view content,
                         bool opens_first) {
    const bool first_of_turn = i == 0 ? opens_first : messages[i - 1].role != "tool";
    const bool last_of_turn = i + 1 == messages.size() || messages[i + 1].role != "tool";
    out << (first_of_turn ? "<|im_start|>user" : "") << "\n<tool_response>\n"
        << content << "\n</tool_response>" << (last_of_turn ? "<|im_end|>\n" : "");
}

}  // namespace dflash::data
