// SPDX-License-Identifier: Apache-2.0
#include "value_scanner.hpp"

#include <cctype>
#include <string>

namespace dflash::data {

namespace {

// `at` is behind the opening quote.
ValueEnd find_string_end(std::string_view text, std::size_t at) {
    for (; at < text.size(); ++at) {
        const char c = text[at];
        if (c == '"') {
            return {.kind = ValueEnd::Kind::Whole, .end = at + 1};
        }
        if (c == '\\') {
            ++at;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            return {.kind = ValueEnd::Kind::Wrong, .end = at};
        }
    }
    return {.kind = ValueEnd::Kind::Cut, .end = text.size()};
}

// Of a word or a number, NaN and -Infinity included.
std::size_t find_word_end(std::string_view text, std::size_t at) {
    while (at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) != 0 ||
                                text[at] == '-' || text[at] == '+' || text[at] == '.')) {
        ++at;
    }
    return at;
}

}  // namespace

std::size_t skip_json_blanks(std::string_view text, std::size_t at) {
    const std::size_t found = text.find_first_not_of(" \t\r\n", at);
    return found == std::string_view::npos ? text.size() : found;
}

ValueEnd find_value_end(std::string_view text, std::size_t at) {
    std::string open;          // the brackets around `at`
    bool after_value = false;  // the next thing is a comma, a colon or a closing bracket
    for (at = skip_json_blanks(text, at); at < text.size(); at = skip_json_blanks(text, at)) {
        const ValueEnd wrong{.kind = ValueEnd::Kind::Wrong, .end = at};
        const char c = text[at];
        if (c == ',' || c == ':') {
            if (!after_value || open.empty()) {
                return wrong;
            }
            after_value = false;
            ++at;
            continue;
        }
        if (c == '}' || c == ']') {
            if (open.empty() || open.back() != (c == '}' ? '{' : '[')) {
                return wrong;
            }
            open.pop_back();
            ++at;
        } else if (after_value) {
            return wrong;
        } else if (c == '{' || c == '[') {
            open += c;
            ++at;
            continue;
        } else if (c == '"') {
            const ValueEnd string = find_string_end(text, at + 1);
            if (string.kind != ValueEnd::Kind::Whole) {
                return string;
            }
            at = string.end;
        } else {
            const std::size_t end = find_word_end(text, at);
            if (end == at) {
                return wrong;
            }
            at = end;
        }
        after_value = true;
        if (open.empty()) {
            return {.kind = ValueEnd::Kind::Whole, .end = at};
        }
    }
    return {.kind = ValueEnd::Kind::Cut, .end = text.size()};
}

}  // namespace dflash::data
