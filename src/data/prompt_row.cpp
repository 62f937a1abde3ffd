// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/data/prompt_row.hpp>

#include <algorithm>
#include <iterator>

namespace dflash::data {
namespace {

constexpr std::string_view kMessages = "messages";
constexpr std::string_view kBlanks = " \t\r\n";

// Answers that are there but empty: as if they were not. Returns whether there was one.
bool remove_empty_answers(io::Json& row) {
    if (!row.is_object()) {
        return false;
    }
    const auto is_empty = [](const auto& member) {
        const auto& [key, value] = member;
        const bool is_answer = key == "response" || key == "completion" || key == "output" ||
                               key == "solution" || key == "answer";
        return is_answer && value.is_string() &&
               value.as_string().find_first_not_of(kBlanks) == std::string::npos;
    };
    return std::erase_if(row.members(), is_empty) > 0;
}

// "prompt + response" and "conversations (from, value)" are names of shapes made of fields.
std::vector<std::string> fields_of_shape(const std::string& shape) {
    std::vector<std::string> fields;
    std::size_t begin = 0;
    while (begin <= shape.size()) {
        const std::size_t end = std::min(shape.find(" + ", begin), shape.size());
        const std::string part = shape.substr(begin, end - begin);
        fields.push_back(part.substr(0, part.find(" (")));
        begin = end + 3;
    }
    return fields;
}

bool has_tool_messages(const Conversation& conversation) {
    return std::any_of(
        conversation.messages.begin(), conversation.messages.end(), [](const Message& message) {
            return message.role == "tool" || !message.tool_calls.empty();
        });
}

template <class T>
std::vector<T> take(std::vector<T>& from, std::size_t begin, std::size_t end) {
    const auto first = from.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = from.begin() + static_cast<std::ptrdiff_t>(end);
    return {std::make_move_iterator(first), std::make_move_iterator(last)};
}

bool is_answer(const Message& message) {
    return message.role == "assistant";
}

}  // namespace

PromptRow::Result PromptRow::read(std::string_view text, bool ends_file, AnswerChoice choice) {
    io::Json json;
    RowResult row = read_row(text, ends_file);
    if (row.row || (row.fault && row.fault->kind == "empty_answer")) {
        json = io::Json::parse(text.substr(std::min(text.find_first_of("{["), text.size())), "");
        if (remove_empty_answers(json)) {
            row = read_row(json.dump(), ends_file);
        }
    }
    if (row.fault) {
        return {.prompt = std::nullopt, .fault = std::move(row.fault)};
    }
    auto* conversation = std::get_if<Conversation>(&row.row->content);
    const bool missing = conversation != nullptr &&
                         (conversation->is_prompt() || !conversation->later_turns.empty());
    if (conversation == nullptr || (choice == AnswerChoice::Missing && !missing)) {
        return {};
    }

    PromptRow prompt;
    prompt.row_ = json.is_array() ? io::Json::object() : std::move(json);
    prompt.fields_ = fields_of_shape(row.row->shape);
    std::vector<Message>& messages = conversation->messages;
    std::vector<io::Json> written;
    const io::Json* own = prompt.row_.find(kMessages);
    const bool as_written = row.row->shape == kMessages && own != nullptr && own->is_array() &&
                            own->items().size() == messages.size() &&
                            std::all_of(own->items().begin(),
                                        own->items().end(),
                                        [](const io::Json& m) { return m.count("role") > 0; });
    for (std::size_t i = 0; i < messages.size(); ++i) {
        written.push_back(as_written ? own->items()[i] : data::to_json(messages[i]));
    }
    for (const std::vector<Message>& turn : conversation->later_turns) {
        prompt.later_written_.emplace_back();
        for (const Message& message : turn) {
            prompt.later_written_.back().push_back(data::to_json(message));
        }
    }

    std::size_t end = messages.size();  // of what is asked first
    if (choice == AnswerChoice::All && !missing && has_tool_messages(*conversation)) {
        end = messages.size() - 1;
        while (end > 0 && is_answer(messages[end - 1])) {
            --end;
        }
    } else if (choice == AnswerChoice::All && !has_tool_messages(*conversation)) {
        // From the first answer behind a question on: answers fall away, and what stands between
        // two of them is a turn.
        const auto question = std::find_if(
            messages.begin(), messages.end(), [](const Message& m) { return m.role == "user"; });
        end = static_cast<std::size_t>(std::find_if(question, messages.end(), is_answer) -
                                       messages.begin());
        std::vector<std::vector<Message>> turns;
        std::vector<std::vector<io::Json>> written_turns;
        for (std::size_t i = end; i < messages.size();) {
            std::size_t stop = i;
            while (stop < messages.size() && is_answer(messages[stop]) == is_answer(messages[i])) {
                ++stop;
            }
            if (!is_answer(messages[i])) {
                turns.push_back(take(messages, i, stop));
                written_turns.push_back(take(written, i, stop));
            }
            i = stop;
        }
        std::move(conversation->later_turns.begin(),
                  conversation->later_turns.end(),
                  std::back_inserter(turns));
        std::move(prompt.later_written_.begin(),
                  prompt.later_written_.end(),
                  std::back_inserter(written_turns));
        conversation->later_turns = std::move(turns);
        prompt.later_written_ = std::move(written_turns);
    }
    messages.resize(end);
    written.resize(end);
    prompt.conversation_ = std::move(*conversation);
    prompt.written_ = std::move(written);
    return {.prompt = std::move(prompt), .fault = std::nullopt};
}

void PromptRow::answer(Message message) {
    io::Json written = data::to_json(message);
    add(std::move(written), std::move(message));
}

void PromptRow::restore(const io::Json& answer) {
    Message message;
    message.role = "assistant";
    add(answer, std::move(message));
}

std::string PromptRow::later_turns() const {
    std::string text;
    for (const std::vector<io::Json>& turn : later_written_) {
        text += io::Json::array(turn).dump() + "\n";
    }
    return text;
}

void PromptRow::add(io::Json written, Message message) {
    DFLASH_CHECK(!done_, "an answer to a row that has all");
    answers_.push_back(written);
    written_.push_back(std::move(written));
    conversation_.messages.push_back(std::move(message));
    ++answered_;
    if (conversation_.later_turns.empty()) {
        done_ = true;
        return;
    }
    std::vector<std::vector<Message>>& later = conversation_.later_turns;
    std::move(
        later.front().begin(), later.front().end(), std::back_inserter(conversation_.messages));
    std::move(
        later_written_.front().begin(), later_written_.front().end(), std::back_inserter(written_));
    later.erase(later.begin());
    later_written_.erase(later_written_.begin());
}

std::string PromptRow::to_json(const std::vector<std::pair<std::string, io::Json>>& columns) const {
    // The questions that were not answered any more stay out.
    std::size_t size = written_.size();
    while (size > 0 && !is_answer(conversation_.messages[size - 1])) {
        --size;
    }
    io::Json messages =
        io::Json::array({written_.begin(), written_.begin() + static_cast<std::ptrdiff_t>(size)});
    const auto is_one_of = [](const auto& list, const std::string& key) {
        return std::find(list.begin(), list.end(), key) != list.end();
    };
    std::vector<std::pair<std::string, io::Json>> members;
    bool placed = false;
    for (const auto& [key, value] : row_.members()) {
        if (is_one_of(fields_, key) || key == kMessages) {
            if (!placed) {
                members.emplace_back(kMessages, messages);
                placed = true;
            }
        } else if (std::none_of(columns.begin(), columns.end(), [&, name = key](const auto& c) {
                       return c.first == name;
                   })) {
            members.emplace_back(key, value);
        }
    }
    if (!placed) {
        members.emplace_back(kMessages, std::move(messages));
    }
    members.insert(members.end(), columns.begin(), columns.end());
    return io::Json::object(std::move(members)).dump();
}

io::Json to_json(const Message& message) {
    io::Json json = io::Json::object({{"role", io::Json::string(message.role)}});
    if (message.reasoning_content) {
        json.set("reasoning_content", io::Json::string(*message.reasoning_content));
    }
    json.set("content", message.content_is_null ? io::Json() : io::Json::string(message.content));
    if (!message.tool_calls.empty()) {
        std::vector<io::Json> calls;
        for (const ToolCall& call : message.tool_calls) {
            io::Json item = io::Json::object();
            if (call.id) {
                item.set("id", io::Json::string(*call.id));
            }
            item.set("type", io::Json::string("function"));
            item.set("function",
                     io::Json::object(
                         {{"name", io::Json::string(call.name)}, {"arguments", call.arguments}}));
            calls.push_back(std::move(item));
        }
        json.set("tool_calls", io::Json::array(std::move(calls)));
    }
    if (message.name) {
        json.set("name", io::Json::string(*message.name));
    }
    if (message.tool_call_id) {
        json.set("tool_call_id", io::Json::string(*message.tool_call_id));
    }
    if (!message.train) {
        json.set("weight", io::Json::integer(0));
    }
    return json;
}

}  // namespace dflash::data
