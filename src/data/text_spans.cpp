// SPDX-License-Identifier: Apache-2.0
// Spans of text that somebody else rendered: here, and only here, marks are looked for in text.
#include <dflash/data/chat_format.hpp>

#include <algorithm>

namespace dflash::data {

namespace {

// End of the first of the turn's ends at or behind `from`, or of the text.
std::size_t find_turn_end(std::string_view text, const TextMarks& marks, std::size_t from) {
    std::size_t first = std::string_view::npos;
    std::size_t end = text.size();
    for (const std::string& mark : marks.turn_ends) {
        const std::size_t at = text.find(mark, from);
        if (at < first) {
            first = at;
            end = at + mark.size();
        }
    }
    return end;
}

}  // namespace

std::vector<ByteRange> spans_of_text(const ChatFormat& format, std::string_view text) {
    const TextMarks marks = format.text_marks();
    std::vector<ByteRange> spans;
    bool has_header = false;
    for (std::size_t at = text.find(marks.assistant_header); at != std::string_view::npos;) {
        has_header = true;
        std::size_t begin = at + marks.assistant_header.size();
        for (const std::string& block : marks.prompt_blocks) {
            if (text.substr(begin).starts_with(block)) {
                begin += block.size();
                break;
            }
        }
        const std::size_t end = find_turn_end(text, marks, begin);
        if (begin < end) {
            spans.push_back(
                {.begin = static_cast<std::int64_t>(begin), .end = static_cast<std::int64_t>(end)});
        }
        at = text.find(marks.assistant_header, end);
    }
    if (!has_header && !text.empty()) {
        spans.push_back({.begin = 0, .end = static_cast<std::int64_t>(text.size())});
    }
    return spans;
}

}  // namespace dflash::data
