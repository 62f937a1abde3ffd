// SPDX-License-Identifier: Apache-2.0
// Tool definitions, calls and results as Qwen2.5, Qwen3 and Qwen3-2507 write them, and what all
// families share of them.
#pragma once

#include "rendered_text.hpp"

#include <dflash/io/json.hpp>

namespace dflash::data {

/// Arguments of a call as an object. Text (as OpenAI's interface has it) is parsed, as servers do
/// before they render; Error{Data} if it is not the JSON of an object.
io::Json arguments_object(const ToolCall& call);

/// The part of the system message that defines tools, from "# Tools" to the end of the turn.
void write_json_tools(RenderedText& out, const io::Json& tools);

/// `arguments`: the text of a call's arguments.
void write_json_call(RenderedText& out, const ToolCall& call, std::string_view arguments);

/// Message i of role tool. Adjacent ones are one user turn; `opens_first`: also where the
/// conversation begins with one.
void write_tool_response(RenderedText& out,
                         const std::vector<Message>& messages,
                         std::size_t i,
                         std::string_view content,
                         bool opens_first = true);

}  // namespace dflash::data
