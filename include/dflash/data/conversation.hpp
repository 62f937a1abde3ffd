// SPDX-License-Identifier: Apache-2.0
// One row of a data file as messages, whatever shape the line had. A row is used whole or refused
// with a kind and a sentence; nothing of it is lost silently. In all fields null counts as absent,
// and a key that is read and stands twice refuses the row.
#pragma once

#include <dflash/io/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::data {

struct ToolCall {
    std::string name;
    io::Json arguments;  ///< an object, or a text as given
    std::optional<std::string> id;

    friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

/// One message; `role` is system, user, assistant or tool. Content is kept byte for byte.
struct Message {
    std::string role;
    std::string content;
    bool content_is_null = false;
    std::optional<std::string> reasoning_content;
    std::vector<ToolCall> tool_calls;  ///< of assistant messages only
    bool train = true;                 ///< weight 0 in the data: not trained
    std::optional<std::string> name;   ///< of a tool message, if given
    std::optional<std::string> tool_call_id;

    friend bool operator==(const Message&, const Message&) = default;
};

struct Conversation {
    std::vector<Message> messages;
    std::optional<io::Json> tools;  ///< a list that is not empty
    /// Of a row with questions only: what follows the answer to `messages`, turn by turn.
    std::vector<std::vector<Message>> later_turns;

    /// Whether the row is a question without its answer: the last message is not the assistant's.
    bool is_prompt() const;
};

/// Why a row cannot be used: a kind to count by and a sentence that names the field and what was
/// found.
struct RowFault {
    std::string kind;  ///< "bad_json", "no_known_fields", "unknown_role", ...
    std::string message;
    std::int64_t column = 1;  ///< in characters, from 1: where the JSON text is wrong, else where
                              ///< the row begins
    bool ends_early = false;  ///< bad_json because the text ends inside a value: a cut file, if it
                              ///< is the last line
};

/// Exactly one of the two is set.
struct RowResult {
    std::optional<Conversation> conversation;
    std::optional<RowFault> fault;
};

/// Whether a line holds nothing but a byte order mark and blanks.
bool is_blank_line(std::string_view line);

/// Reads one line. A byte order mark before it and blanks around it are ignored. The first field
/// that is present decides the shape:
///   1. `messages`, `conversations`, `conversation`: a list (or text that holds one) of messages
///      (role/from, content/value/text), or of pairs like {"input", "output"}; `data`: a list of
///      texts, user and assistant in turn. A bare list of messages is a row too.
///   2. `input_ids` and 3. `text`: refused with kind unsupported_row.
///   4. `turns`: a list of questions.
///   5. a question (`prompt`, `instruction`, `question`, `problem`, `query`, `input`) and an answer
///      (`response`, `completion`, `output`, `solution`, `answer`, `chosen`), each text or
///      messages; `input` or `context` beside the question follow it; `history` holds earlier
///      pairs.
///   6. `chosen` alone, as messages.
/// `system` or `system_prompt` becomes the first message if it is not empty and no message is a
/// system message; `tools` is a list or text that holds one.
RowResult read_row(std::string_view line);

/// Messages and tools as the fields above hold them (tools may be null), without judging whether
/// there is something to answer or to train. Throws Error{Data} with the sentence of the fault.
Conversation read_messages(const io::Json& messages, const io::Json* tools);

}  // namespace dflash::data
