// SPDX-License-Identifier: Apache-2.0
// Mode rows: what the reader of rows says of every line of a file, or how many usable rows each
// file of a folder has.
#include "golden_check.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/data/row.hpp>
#include <dflash/data/row_file.hpp>
#include <dflash/io/jsonl.hpp>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>

namespace dflash::golden {

namespace {

constexpr int kShown = 10;  // differences that are printed

io::Json as_json(const data::Message& message) {
    io::Json json = io::Json::object();
    json.set("role", io::Json::string(message.role));
    json.set("content", io::Json::string(message.content));
    if (message.reasoning_content) {
        json.set("reasoning_content", io::Json::string(*message.reasoning_content));
    }
    if (!message.tool_calls.empty()) {
        std::vector<io::Json> calls;
        for (const data::ToolCall& call : message.tool_calls) {
            io::Json item = io::Json::object(
                {{"name", io::Json::string(call.name)}, {"arguments", call.arguments}});
            if (call.id) {
                item.set("id", io::Json::string(*call.id));
            }
            calls.push_back(std::move(item));
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

io::Json as_json(const std::vector<data::Message>& messages) {
    std::vector<io::Json> items;
    for (const data::Message& message : messages) {
        items.push_back(as_json(message));
    }
    return io::Json::array(std::move(items));
}

template <class Values>
io::Json list_of(const Values& values) {
    std::vector<io::Json> items;
    for (const auto value : values) {
        items.push_back(io::Json::integer(value));
    }
    return io::Json::array(std::move(items));
}

// In the form of the reference data, without the number of the line.
io::Json as_json(const data::Row& row) {
    io::Json json = io::Json::object();
    if (const auto* text = std::get_if<data::FinishedText>(&row.content)) {
        json.set("use", io::Json::string("text"));
        json.set("text", io::Json::string(text->text));
        return json;
    }
    if (const auto* tokens = std::get_if<data::FinishedTokens>(&row.content)) {
        json.set("use", io::Json::string("tokens"));
        json.set("input_ids", list_of(tokens->ids));
        json.set("loss_mask", tokens->loss_mask ? list_of(*tokens->loss_mask) : io::Json());
        return json;
    }
    const auto& conversation = std::get<data::Conversation>(row.content);
    json.set("use", io::Json::string(conversation.is_prompt() ? "prompt" : "train"));
    json.set("messages", as_json(conversation.messages));
    if (conversation.tools) {
        json.set("tools", *conversation.tools);
    }
    std::vector<io::Json> later;
    for (const std::vector<data::Message>& turn : conversation.later_turns) {
        later.push_back(as_json(turn));
    }
    if (!later.empty()) {
        json.set("later_turns", io::Json::array(std::move(later)));
    }
    return json;
}

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
        return static_cast<char>(std::tolower(c));
    });
    return text;
}

// Sorted by key, since only the order inside values means something.
std::map<std::string, std::string> fields_of(const io::Json& json) {
    std::map<std::string, std::string> fields;
    for (const char* key :
         {"use", "messages", "tools", "later_turns", "text", "input_ids", "loss_mask"}) {
        if (const io::Json* value = json.find(key)) {
            fields[key] = value->dump();
        }
    }
    return fields;
}

// Empty if the result is what is expected.
std::string difference(const data::RowResult& result, const io::Json& expected) {
    if (expected.find("ok")->as_bool()) {
        if (result.fault) {
            return fmt::format("refused as {}: {}", result.fault->kind, result.fault->message);
        }
        const io::Json found = as_json(*result.row);
        return fields_of(found) == fields_of(expected)
                   ? ""
                   : fmt::format("read as {}, expected {}", found.dump(), expected.dump());
    }
    if (!result.fault) {
        return "read, expected a refusal as " + expected.find("kind")->as_string();
    }
    if (result.fault->kind != expected.find("kind")->as_string()) {
        return fmt::format(
            "refused as {}, expected {}", result.fault->kind, expected.find("kind")->as_string());
    }
    for (const io::Json& mention : expected.find("mentions")->items()) {
        if (lower(result.fault->message).find(lower(mention.as_string())) == std::string::npos) {
            return fmt::format("the message does not mention {}: {}",
                               quote(mention.as_string()),
                               result.fault->message);
        }
    }
    return "";
}

void check_lines(const std::string& path, const io::JsonLines& expected, Verdict& verdict) {
    const data::RowFile file(path);
    std::map<std::int64_t, std::int64_t> row_of_line;
    for (std::int64_t row = 0; row < file.size(); ++row) {
        row_of_line[file.place(row).line] = row;
    }
    std::map<std::string, std::pair<std::int64_t, std::int64_t>> counts;  // use: wrong, total
    int shown = 0;
    for (std::int64_t i = 1; i <= expected.size(); ++i) {
        const io::Json golden = io::Json::parse(expected.line(i).text, expected.place(i));
        const std::int64_t line = golden.require_integer("line", expected.place(i));
        const io::Json* use = golden.find("use");
        const bool is_blank = use != nullptr && use->as_string() == "blank";
        const auto row = row_of_line.find(line);
        std::string wrong;
        if (is_blank != (row == row_of_line.end())) {
            wrong = is_blank ? "is a row, expected a blank line" : "is no row";
        } else if (!is_blank) {
            wrong = difference(data::read_row(file.text(row->second), file.ends_file(row->second)),
                               golden);
        }
        auto& [num_wrong, total] = counts[use != nullptr ? use->as_string() : "refused"];
        ++total;
        if (!wrong.empty()) {
            ++num_wrong;
            if (shown++ < kShown) {
                verdict.note(fmt::format("{}:{} {}", path, line, wrong));
            }
        }
    }
    for (const auto& [use, count] : counts) {
        verdict.exact(use, count.first, count.second, "");
    }
    verdict.exact("rows that nothing is expected of",
                  file.size() + file.num_blank() - expected.size(),
                  file.size() + file.num_blank(),
                  "");
}

// What a note allows beside the expectation: "... is right as well (rows 1)".
std::optional<std::int64_t> allowed_rows(const io::Json& golden) {
    const io::Json* note = golden.find("note");
    constexpr std::string_view kRows = "right as well (rows ";
    const std::size_t at = note == nullptr ? std::string::npos : note->as_string().find(kRows);
    if (at == std::string::npos) {
        return std::nullopt;
    }
    return std::stoll(note->as_string().substr(at + kRows.size()));
}

void check_files(const std::string& folder, const io::JsonLines& expected, Verdict& verdict) {
    for (std::int64_t i = 1; i <= expected.size(); ++i) {
        const io::Json golden = io::Json::parse(expected.line(i).text, expected.place(i));
        const std::string name = golden.require_string("file", expected.place(i));
        std::int64_t usable = 0;
        std::string problem;
        try {
            const data::RowFile file((std::filesystem::path(folder) / name).string());
            for (std::int64_t row = 0; row < file.size(); ++row) {
                const data::RowResult result = data::read_row(file.text(row), file.ends_file(row));
                usable += result.row ? 1 : 0;
                if (result.fault && problem.empty()) {
                    problem = result.fault->message;
                }
            }
        } catch (const Error& error) {
            problem = error.what();
        }
        const std::int64_t rows = golden.require_integer("rows", expected.place(i));
        const bool is_sound = golden.find("problem")->is_null();
        const bool as_expected = usable == rows && is_sound == problem.empty();
        const bool as_noted = problem.empty() && allowed_rows(golden) == usable;
        verdict.exact(
            fmt::format("{}: {} rows", name, usable), as_expected || as_noted ? 0 : 1, 1, problem);
        if (!problem.empty()) {
            verdict.note(problem);
        }
    }
}

}  // namespace

void check_rows(const std::string& rows, const std::string& expected, Verdict& verdict) {
    const io::JsonLines cases(expected);
    if (std::filesystem::is_directory(rows)) {
        check_files(rows, cases, verdict);
    } else {
        check_lines(rows, cases, verdict);
    }
}

}  // namespace dflash::golden
