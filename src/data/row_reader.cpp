// SPDX-License-Identifier: Apache-2.0
#include "python_text.hpp"
#include "row_shapes.hpp"
#include "utf8.hpp"

#include <dflash/core/error.hpp>
#include <dflash/data/row.hpp>

#include <algorithm>

namespace dflash::data {

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::string_view kBlanks = " \t\r\n";

std::string_view trim_line(std::string_view line) {
    if (line.starts_with(kByteOrderMark)) {
        line.remove_prefix(kByteOrderMark.size());
    }
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    return line.substr(0, line.find_last_not_of(kBlanks) + 1);
}

// Column of a byte, in characters from 1, as editors count.
std::int64_t column_of(std::string_view line, std::size_t offset) {
    const std::string_view before = line.substr(0, offset);
    return 1 +
           std::count_if(before.begin(), before.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

// Bytes that no JSON text can hold, named before the parser sees them.
std::optional<RowFault> find_byte_fault(std::string_view line) {
    if (const std::size_t nul = line.find('\0'); nul != std::string_view::npos) {
        const bool all = line.find_first_not_of('\0') == std::string_view::npos;
        return RowFault{
            .kind = "nul_byte",
            .message = all ? "the line is all NUL bytes; the file was probably cut by a crash"
                           : fmt::format("byte {} of the line is NUL", nul + 1),
            .column = column_of(line, nul)};
    }
    if (const std::optional<std::size_t> bad = find_invalid_utf8(line)) {
        return RowFault{.kind = "bad_utf8",
                        .message = fmt::format("byte {} of the line is not UTF-8", *bad + 1),
                        .column = column_of(line, *bad)};
    }
    return std::nullopt;
}

// The usual cause of a fault at this place, as an addition to the parser's words.
std::string_view usual_cause(std::string_view text, std::size_t offset) {
    const std::string_view rest = text.substr(std::min(offset, text.size()));
    const std::string_view before =
        text.substr(0, text.find_last_not_of(kBlanks, offset == 0 ? 0 : offset - 1) + 1);
    if (rest.starts_with('\'')) {
        return "; single quotes: this looks like a Python dict";
    }
    if (rest.starts_with("True") || rest.starts_with("False") || rest.starts_with("None")) {
        return "; this looks like a Python dict";
    }
    if (offset > 0 && before.ends_with(',') && (rest.starts_with('}') || rest.starts_with(']'))) {
        return "; a comma before the closing bracket";
    }
    if (offset > 0 && before.ends_with('}') && rest.starts_with('{')) {
        return "; two rows on one line";
    }
    const bool has_brackets = text.find_first_of("{[") != std::string_view::npos;
    if (offset == 0 && !has_brackets && text.find(',') != std::string_view::npos) {
        return "; this looks like CSV";
    }
    return "";
}

std::string_view kind_of(io::JsonFault fault) {
    switch (fault) {
        case io::JsonFault::BadUtf8:
            return "bad_utf8";
        case io::JsonFault::HalfSurrogate:
            return "bad_unicode";
        case io::JsonFault::TooDeep:
            return "too_deep";
        case io::JsonFault::Syntax:
        case io::JsonFault::Truncated:
            break;
    }
    return "bad_json";
}

// Whether only the rest of the line is missing at the place of the fault: also for a word or a
// surrogate pair that was cut in its middle.
bool ends_early(std::string_view text, const io::JsonError& error) {
    const std::string_view rest = text.substr(std::min(error.offset(), text.size()));
    switch (error.fault()) {
        case io::JsonFault::Truncated:
            return true;
        case io::JsonFault::Syntax:
            for (const std::string_view word : {"true", "false", "null", "NaN", "-Infinity"}) {
                if (!rest.empty() && word.starts_with(rest)) {
                    return true;
                }
            }
            return false;
        case io::JsonFault::HalfSurrogate:
            return rest.size() < std::string_view("\\ud83d\\ude00").size() &&
                   rest.find('"') == std::string_view::npos;
        case io::JsonFault::BadUtf8:
        case io::JsonFault::TooDeep:
            break;
    }
    return false;
}

// `text` is the trimmed part of `line`.
RowFault explain(std::string_view line,
                 std::string_view text,
                 const io::JsonError& error,
                 bool ends_file) {
    const auto begin = static_cast<std::size_t>(text.data() - line.data());
    const std::size_t at = begin + error.offset();
    const bool is_cut = ends_early(text, error);
    std::string message = error.parts().what + std::string(usual_cause(text, error.offset()));
    if (is_cut && ends_file) {
        message = "the last row of the file ends early, the file was probably cut: " + message;
    }
    const std::string_view before = line.substr(0, at);
    const std::size_t line_begin = before.rfind('\n') + 1;  // 0 without one
    return {.kind = is_cut ? (ends_file ? "truncated" : "bad_json")
                           : std::string(kind_of(error.fault())),
            .message = std::move(message),
            .column = column_of(line.substr(line_begin), at - line_begin),
            .line = std::count(before.begin(), before.end(), '\n'),
            .ends_early = is_cut};
}

// What every row must have, whatever its shape.
void check_turns(const Conversation& conversation) {
    const auto& messages = conversation.messages;
    if (std::none_of(
            messages.begin(), messages.end(), [](const Message& m) { return m.role == "user"; })) {
        refuse("no_user_turn", "no user message: nothing to answer");
    }
    const Message& last = messages.back();
    const bool has_reasoning =
        last.reasoning_content && !python_strip(*last.reasoning_content).empty();
    if (last.role == "assistant" && last.tool_calls.empty() && !has_reasoning &&
        python_strip(last.content).empty()) {
        refuse("empty_answer",
               "the last assistant message (message {} of {}) is {}",
               messages.size(),
               messages.size(),
               last.content.empty() ? "empty" : "only white space");
    }
}

}  // namespace

bool Conversation::is_prompt() const {
    return messages.empty() || messages.back().role != "assistant";
}

bool is_blank_line(std::string_view line) {
    return trim_line(line).empty();
}

RowResult read_row(std::string_view text, bool ends_file) {
    RowResult result;
    if (auto fault = find_byte_fault(text)) {
        result.fault = std::move(fault);
        return result;
    }
    const std::string_view value = trim_line(text);
    try {
        Row row = read_shape(io::Json::parse(value, ""));
        if (const auto* conversation = std::get_if<Conversation>(&row.content)) {
            check_turns(*conversation);
        }
        result.row = std::move(row);
    } catch (RowRefusal& refusal) {
        result.fault = std::move(refusal.fault);
        result.fault->column =
            column_of(text, static_cast<std::size_t>(value.data() - text.data()));
    } catch (const io::JsonError& error) {
        result.fault = explain(text, value, error, ends_file);
    }
    return result;
}

Conversation read_messages(const io::Json& messages, const io::Json* tools) {
    try {
        Conversation conversation;
        std::vector<std::string> ignored;
        conversation.messages = read_messages_field(
            {.name = "messages", .place = "messages", .value = &messages}, ignored);
        if (tools != nullptr && !tools->is_null()) {
            conversation.tools = read_tools({.name = "tools", .place = "tools", .value = tools});
        }
        return conversation;
    } catch (const RowRefusal& refusal) {
        throw Error(ErrorKind::Data,
                    {.what = refusal.fault.message, .where = {}, .cause = {}, .hint = {}});
    }
}

}  // namespace dflash::data
