// SPDX-License-Identifier: Apache-2.0
#include "row_shapes.hpp"

#include "finished_rows.hpp"
#include "message_reader.hpp"
#include "python_text.hpp"

#include <dflash/core/text.hpp>

#include <algorithm>
#include <fmt/ranges.h>

namespace dflash::data {

namespace {

// What servers call it, and dflash generate.
constexpr std::string_view kCutAnswer = "length";

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
Conversation read_question(const Field& field, std::vector<std::string>& ignored) {
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
        conversation.messages = read_message_list(*field.value, field.place, ignored);
        return conversation;
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
        std::vector<Message> turn =
            read_message_list(items[i], fmt::format("{}[{}]", field.place, i), ignored);
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
void append_context(RowFields& fields, const Field& question, Conversation& conversation) {
    for (const std::string_view key : {"input", "context"}) {
        const Field field = fields.take({key});
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
void insert_history(RowFields& fields, Conversation& conversation) {
    const Field field = fields.take({"history"});
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
void append_answer(const Field& answer,
                   Conversation& conversation,
                   std::vector<std::string>& ignored) {
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
    std::vector<Message> given = read_message_list(*answer.value, answer.place, ignored);
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

Field take_answer(RowFields& fields) {
    return fields.take({"response", "completion", "output", "solution", "answer", "chosen"});
}

// The keys that are there tell the reader at once what kind of file this is.
[[noreturn]] void refuse_unknown(const io::Json& row, RowFields& fields) {
    if (const Field answer = take_answer(fields)) {
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

void read_question_and_answer(RowFields& fields, const Field& question, Row& row) {
    Conversation conversation = read_question(question, row.ignored);
    row.shape = question.name;
    append_context(fields, question, conversation);
    insert_history(fields, conversation);
    if (const Field answer = take_answer(fields)) {
        append_answer(answer, conversation, row.ignored);
        row.shape += " + " + answer.name;
    }
    row.content = std::move(conversation);
}

// ShareGPT's names of the fields of messages are part of what a shape is called.
std::string shape_of_list(const Field& field) {
    const bool is_list = field.value->is_array() && !field.value->items().empty();
    const bool is_sharegpt = is_list && field.value->items().front().count("from") > 0;
    return field.name + (is_sharegpt ? " (from, value)" : "");
}

// The first field that is present decides; the order is part of the format.
void read_fields(const io::Json& json, RowFields& fields, Row& row) {
    Conversation conversation;
    if (const Field list = fields.take({"messages", "conversations", "conversation"})) {
        row.shape = shape_of_list(list);
        conversation.messages = read_messages_field(list, row.ignored);
    } else if (const Field data = fields.take({"data"})) {
        row.shape = data.name;
        conversation.messages = read_alternating(data);
    } else if (const Field ids = fields.take({"input_ids"})) {
        row.content = read_finished_tokens(ids, fields, row.shape);
        return;
    } else if (const Field text = fields.take({"text"})) {
        row.shape = text.name;
        row.content = read_finished_text(text);
        return;
    } else if (const Field turns = fields.take({"turns"})) {
        row.shape = turns.name;
        conversation = read_user_turns(turns);
    } else if (const Field question = fields.take(
                   {"prompt", "instruction", "question", "problem", "query", "input"})) {
        read_question_and_answer(fields, question, row);
        return;
    } else if (const Field chosen = fields.take({"chosen"}); chosen && chosen.value->is_array()) {
        row.shape = chosen.name;
        conversation.messages = read_messages_field(chosen, row.ignored);
    } else {
        refuse_unknown(json, fields);
    }
    row.content = std::move(conversation);
}

// An empty system text says the same as none: data sets with a system column leave it empty there.
// One beside a system message is not read.
void insert_system(RowFields& fields, Conversation& conversation) {
    const auto is_system = [](const Message& m) { return m.role == "system"; };
    auto& messages = conversation.messages;
    if (std::any_of(messages.begin(), messages.end(), is_system)) {
        return;
    }
    const Field system = fields.take({"system", "system_prompt"});
    if (system && !text_of(system).empty()) {
        messages.insert(messages.begin(), make_message("system", system.value->as_string()));
    }
}

// OpenAI's older `functions` are the inner objects of `tools`.
std::optional<io::Json> read_row_tools(RowFields& fields) {
    if (const Field tools = fields.take({"tools"})) {
        return read_tools(tools);
    }
    const Field functions = fields.take({"functions"});
    std::optional<io::Json> list = read_tools(functions);
    if (list) {
        for (io::Json& function : list->items()) {
            function = io::Json::object(
                {{"type", io::Json::string("function")}, {"function", std::move(function)}});
        }
    }
    return list;
}

Row read_bare_list(const io::Json& list) {
    // Only messages: a list of pairs is more likely a file of rows written as one line.
    if (list.items().empty()) {
        refuse("empty_messages", "the row is an empty list");
    }
    if (list.items()[0].is_object() && !first_field(list.items()[0], {"role", "from"}, "row[0]")) {
        refuse("bad_message",
               "row[0] has no role: a list on a line is taken for the messages of one row");
    }
    Row row;
    row.shape = "a list of messages";
    Conversation conversation;
    conversation.messages = read_message_list(list, "row", row.ignored);
    row.content = std::move(conversation);
    return row;
}

}  // namespace

std::vector<Message> read_messages_field(const Field& field, std::vector<std::string>& ignored) {
    const io::Json list = list_of(field);
    const std::vector<io::Json>& items = list.items();
    if (items.empty()) {
        refuse("empty_messages", "{} is empty", field.place);
    }
    std::vector<Message> messages;
    for (std::size_t i = 0; i < items.size(); ++i) {
        const std::string place = fmt::format("{}[{}]", field.place, i);
        if (!append_pair(messages, items[i], place, i + 1 == items.size())) {
            messages.push_back(read_message(items[i], place, ignored));
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

Row read_shape(const io::Json& json) {
    if (json.is_array()) {
        return read_bare_list(json);
    }
    if (!json.is_object()) {
        refuse("not_a_row",
               "a row is an object or a list of messages, this is {}",
               describe_found(json));
    }
    Row row;
    RowFields fields(json);
    read_fields(json, fields, row);
    if (auto* conversation = std::get_if<Conversation>(&row.content)) {
        insert_system(fields, *conversation);
        conversation->tools = read_row_tools(fields);
        const Field finish = fields.take({"finish_reason"});
        row.answer_cut =
            finish && finish.value->is_string() && finish.value->as_string() == kCutAnswer;
    }
    for (std::string& name : fields.unread()) {
        add_once(row.ignored, std::move(name));
    }
    return row;
}

}  // namespace dflash::data
