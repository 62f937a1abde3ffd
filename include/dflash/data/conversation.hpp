// SPDX-License-Identifier: Apache-2.0
// Conversations: messages with tool calls and reasoning, as the chat formats render them.
#pragma once

#include <dflash/io/json.hpp>

#include <optional>
#include <string>
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

/// Messages and tools as the fields of a row hold them (see row.hpp; tools may be null), without
/// judging whether there is something to answer or to train. Throws Error{Data} with the sentence
/// of the fault.
Conversation read_messages(const io::Json& messages, const io::Json* tools);

}  // namespace dflash::data
