// SPDX-License-Identifier: Apache-2.0
// One row of a data file as messages, whatever shape the line had.
#pragma once

#include <dflash/io/json.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::data {

struct ToolCall {
    std::string name;
    io::Json arguments;  ///< an object, or a text as given
    std::optional<std::string> id;
};

/// One message; `role` is system, user, assistant or tool.
struct Message {
    std::string role;
    std::string content;
    bool content_is_null = false;
    std::optional<std::string> reasoning_content;
    std::vector<ToolCall> tool_calls;
    bool train = true;  ///< weight 0 in the data: not trained
};

struct Conversation {
    std::vector<Message> messages;
    std::optional<io::Json> tools;  ///< a list
};

/// Why a row cannot be used: a kind to count by and a sentence that names the field and what was
/// found.
struct RowFault {
    std::string kind;  ///< "bad_json", "no_known_fields", "unknown_role", ...
    std::string message;
};

/// Reads a parsed line: `messages` or `conversations` with role/content or from/value, and
/// `prompt`/`response`. Exactly one of the two is set in the result.
struct RowResult {
    std::optional<Conversation> conversation;
    std::optional<RowFault> fault;
};

RowResult read_row(std::string_view line);

}  // namespace dflash::data
