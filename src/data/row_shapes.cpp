// SPDX-License-Identifier: Apache-2.0
#include "row_shapes.hpp"

#include "message_reader.hpp"
#include "python_text.hpp"

#include <dflash/core/text.hpp>

#include <algorithm>
#include <fmt/ranges.h>

namespace dflash::data {

namespace {

Message make_message(std::string role, std::string content) {
    Message message;
    message.role = std::move(role);
    message.content = std::move(content);
    return message;
}

void append(std::vector<Message>& to, std::vector<Message> messages) {
    to.insert(to.end(),
              std::make_move_iterator(messages.begin()),
              std::make_move_iterator(messages.end()));
}

// {"input", "output"} and the like: one question and its answer in one object. The last pair of a
// list may lack its answer.
bool append_pair(std::vector<Message>& messages,
                 const io::Json& item,
                 const std::string& place,
                 bool is_last) {
    if (!item.is_object() || first_field(item, {"role", "from"}, place)) {
        return false;
    }
    const Field question =
        first_field(item, {"input", "human", "user", "question", "prompt", "instruction"}, place);
    const Field answer =
        first_field(item, {"output", "assistant", "gpt", "answer", "response"}, place);
    if (!question) {
        return false;
    }
    if (const Field system = first_field(item, {"system"}, place)) {
        messages.push_back(make_message("system", text_of(system)));
    }
    messages.push_back(make_message("user", text_of(question)));
    if (answer) {
        messages.push_back(make_message("assistant", text_of(answer)));
    } else if (!is_last) {
        refuse("bad_message", "{} has a question ({}) but no answer", place, question.name);
    }
    return true;
}

// `data`: user and assistant in turn.
std::vector<Message> read_alternating(const Field& field) {
    const io::Json list = list_of(field);
    if (list.items().empty()) {
        refuse("empty_messages", "{} is empty", field.place);
    }
    std::vector<Message> messages;
    for (std::size_t i = 0; i < list.items().size(); ++i) {
        const Field item{.name = field.name,
                         .place = fmt::format("{}[{}]", field.place, i),
                         .value = &list.items()[i]};
        messages.push_back(make_message(i % 2 == 0 ? "user" : "assistant", text_of(item)));
    }
    return messages;
}

const std::string& question_text(const Field& field) {
    const std::string& text = text_of(field, "text or a list of messages");
    if (python_strip(text).empty()) {
        refuse(
            "empty_prompt", "{} is {}", field.place, text.empty() ? "empty" : "only white space");
    }
    return text;
}

// `turns`: what the user says, turn by turn.
Conversation read_user_turns(const Field& field) {
    const io::Json list = list_of(field);
    if (list.items().empty()) {
        refuse("empty_messages", "{} is empty", field.place);
    }
    Conversation conversation;
    for (std::size_t i = 0; i < list.items().size(); ++i) {
        const Field item{.name = field.name,
                         .place = fmt::format("{}[{}]", field.place, i),
                         .value = &list.items()[i]};
        const Message message = make_message("user", question_text(item));
        if (i == 0) {
            conversation.messages.push_back(message);
        } else {
            conversation.later_turns.push_back({message});
        }
    }
    return conversation;
}

// A question: text, messages, or a list of turns that are lists of messages.
Conversation read_question(const Field& field) {
    Conversation conversation;
    if (!field.value->is_array()) {
        conversation.messages.push_back(make_message("user", question_text(field)));
        return conversation;
    }
    const std::vector<io::Json>& items = field.value->items();
    if (items.empty()) {
        refuse("empty_messages", "{} is empty", field.place);
    }
    const bool is_turns = std::all_of(
        items.begin(), items.end(), [](const io::Json& item) { return item.is_array(); });
    if (!is_turns) {
        if (items.front().is_string()) {
            refuse(
                "wrong_type", "{} is a list of texts, not text or a list of messages", field.place);
        }
        conversation.messages = read_message_list(*field.value, field.place);
        return conversation;
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
        std::vector<Message> turn =
            read_message_list(items[i], fmt::format("{}[{}]", field.place, i));
        if (turn.empty()) {
            continue;
        }
        if (conversation.messages.empty()) {
            conversation.messages = std::move(turn);
        } else {
            conversation.later_turns.push_back(std::move(turn));
        }
    }
    if (conversation.messages.empty()) {
        refuse("empty_messages", "{} holds only empty turns", field.place);
    }
    return conversation;
}

// `input` or `context` beside a question that is text.
void append_context(const io::Json& row, const Field& question, Conversation& conversation) {
    for (const std::string_view key : {"input", "context"}) {
        const Field field = first_field(row, {key}, "");
        if (!field || field.name == question.name || text_of(field).empty()) {
            continue;
        }
        if (!question.value->is_string()) {
            refuse("wrong_type",
                   "{} stands beside {}, which is {}, not text",
                   field.place,
                   question.place,
                   describe_found(*question.value));
        }
        conversation.messages.back().content += "\n\n" + field.value->as_string();
    }
}

// `history`: earlier [question, answer] pairs, put before the question and after a system message.
void insert_history(const io::Json& row, Conversation& conversation) {
    const Field field = first_field(row, {"history"}, "");
    if (!field) {
        return;
    }
    const io::Json list = list_of(field);
    std::vector<Message> earlier;
    for (std::size_t i = 0; i < list.items().size(); ++i) {
        const io::Json& pair = list.items()[i];
        const bool is_pair = pair.is_array() && pair.items().size() == 2 &&
                             pair.items()[0].is_string() && pair.items()[1].is_string();
        if (!is_pair) {
            refuse("wrong_type",
                   "history[{}] is {}, not a list of two texts, question and answer",
                   i,
                   describe_found(pair));
        }
        earlier.push_back(make_message("user", pair.items()[0].as_string()));
        earlier.push_back(make_message("assistant", pair.items()[1].as_string()));
    }
    auto& messages = conversation.messages;
    const auto after_system = std::find_if(
        messages.begin(), messages.end(), [](const Message& m) { return m.role != "system"; });
    messages.insert(after_system, earlier.begin(), earlier.end());
}

// The answer as text, or as messages: tool calls with their responses, or a whole conversation.
void append_answer(const Field& answer, Conversation& conversation) {
    if (!conversation.later_turns.empty()) {
        refuse("wrong_type",
               "{} stands beside a question of several turns, whose first answers are missing",
               answer.place);
    }
    auto& messages = conversation.messages;
    if (answer.value->is_string()) {
        const std::string& text = answer.value->as_string();
        if (python_strip(text).empty()) {
            refuse("empty_answer",
                   "{} is {}",
                   answer.place,
                   text.empty() ? "empty" : "only white space");
        }
        messages.push_back(make_message("assistant", text));
        return;
    }
    const bool is_messages = answer.value->is_array() && !answer.value->items().empty() &&
                             answer.value->items().front().is_object();
    if (!is_messages) {
        refuse("wrong_type",
               "{} is {}, not text or a list of messages",
               answer.place,
               describe_found(*answer.value));
    }
    std::vector<Message> given = read_message_list(*answer.value, answer.place);
    // Preference data repeats the question at the head of `chosen`.
    const bool repeats_question = given.size() > messages.size() &&
                                  std::equal(messages.begin(), messages.end(), given.begin());
    if (repeats_question) {
        messages = std::move(given);
        return;
    }
    if (given.front().role != "assistant") {
        refuse("bad_message",
               "{}[0] is a {} message; an answer begins with an assistant message or repeats the "
               "whole question",
               answer.place,
               given.front().role);
    }
    append(messages, std::move(given));
}

// The keys that are there tell the reader at once what kind of file this is.
[[noreturn]] void refuse_unknown(const io::Json& row) {
    if (const Field answer = first_field(
            row, {"response", "completion", "output", "solution", "answer", "chosen"}, "")) {
        refuse("no_known_fields", "an answer ({}) but no question", answer.name);
    }
    if (row.members().empty()) {
        refuse("no_known_fields", "an empty object");
    }
    std::vector<std::string> keys;
    for (const auto& [key, value] : row.members()) {
        keys.push_back(quote(key, 40));
    }
    std::sort(keys.begin(), keys.end());
    constexpr std::size_t kShown = 12;
    const std::size_t hidden = keys.size() > kShown ? keys.size() - kShown : 0;
    keys.resize(keys.size() - hidden);
    refuse("no_known_fields",
           "no known field among {}{}; give messages, or prompt and response",
           fmt::join(keys, ", "),
           hidden > 0 ? fmt::format(" and {} more", hidden) : "");
}

Conversation read_question_and_answer(const io::Json& row, const Field& question) {
    Conversation conversation = read_question(question);
    append_context(row, question, conversation);
    insert_history(row, conversation);
    if (const Field answer = first_field(
            row, {"response", "completion", "output", "solution", "answer", "chosen"}, "")) {
        append_answer(answer, conversation);
    }
    return conversation;
}

// The first field that is present decides; the order is part of the format.
Conversation read_fields(const io::Json& row) {
    Conversation conversation;
    if (const Field list = first_field(row, {"messages", "conversations", "conversation"}, "")) {
        conversation.messages = read_messages_field(list);
        return conversation;
    }
    if (const Field data = first_field(row, {"data"}, "")) {
        conversation.messages = read_alternating(data);
        return conversation;
    }
    if (const Field finished = first_field(row, {"input_ids", "text"}, "")) {
        refuse("unsupported_row",
               "{} holds {}, which cannot be trained on yet; give messages, or prompt and response",
               finished.name,
               finished.name == "text" ? "finished text" : "finished token ids");
    }
    if (const Field turns = first_field(row, {"turns"}, "")) {
        return read_user_turns(turns);
    }
    if (const Field question = first_field(
            row, {"prompt", "instruction", "question", "problem", "query", "input"}, "")) {
        return read_question_and_answer(row, question);
    }
    if (const Field chosen = first_field(row, {"chosen"}, ""); chosen && chosen.value->is_array()) {
        conversation.messages = read_messages_field(chosen);
        return conversation;
    }
    refuse_unknown(row);
}

// An empty system text says the same as none: data sets with a system column leave it empty there.
void insert_system(const io::Json& row, Conversation& conversation) {
    const Field system = first_field(row, {"system", "system_prompt"}, "");
    if (!system || text_of(system).empty()) {
        return;
    }
    const auto is_system = [](const Message& m) { return m.role == "system"; };
    auto& messages = conversation.messages;
    if (std::none_of(messages.begin(), messages.end(), is_system)) {
        messages.insert(messages.begin(), make_message("system", system.value->as_string()));
    }
}

}  // namespace

std::vector<Message> read_messages_field(const Field& field) {
    const io::Json list = list_of(field);
    const std::vector<io::Json>& items = list.items();
    if (items.empty()) {
        refuse("empty_messages", "{} is empty", field.place);
    }
    std::vector<Message> messages;
    for (std::size_t i = 0; i < items.size(); ++i) {
        const std::string place = fmt::format("{}[{}]", field.place, i);
        if (!append_pair(messages, items[i], place, i + 1 == items.size())) {
            messages.push_back(read_message(items[i], place));
        }
    }
    return messages;
}

std::optional<io::Json> read_tools(const Field& field) {
    if (!field) {
        return std::nullopt;
    }
    io::Json list = list_of(field);
    for (std::size_t i = 0; i < list.items().size(); ++i) {
        const std::string place = fmt::format("{}[{}]", field.place, i);
        if (!list.items()[i].is_object()) {
            refuse("wrong_type", "{} is {}, not an object", place, describe_found(list.items()[i]));
        }
        refuse_duplicate_keys(list.items()[i], place);
    }
    if (list.items().empty()) {
        return std::nullopt;
    }
    return list;
}

Conversation read_shape(const io::Json& row) {
    if (row.is_array()) {
        // Only messages: a list of pairs is more likely a file of rows written as one line.
        if (row.items().empty()) {
            refuse("empty_messages", "the row is an empty list");
        }
        if (row.items()[0].is_object() &&
            !first_field(row.items()[0], {"role", "from"}, "row[0]")) {
            refuse("bad_message",
                   "row[0] has no role: a list on a line is taken for the messages of one row");
        }
        Conversation conversation;
        conversation.messages = read_message_list(row, "row");
        return conversation;
    }
    if (!row.is_object()) {
        refuse("not_a_row",
               "a row is an object or a list of messages, this is {}",
               describe_found(row));
    }
    Conversation conversation = read_fields(row);
    insert_system(row, conversation);
    conversation.tools = read_tools(first_field(row, {"tools"}, ""));
    return conversation;
}

}  // namespace dflash::data
