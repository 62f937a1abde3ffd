// SPDX-License-Identifier: Apache-2.0
// Json::parse: a recursive descent over the text, after simdjson has checked its UTF-8.
//
// Why not simdjson's own parsers (3.0.1, tried): DOM keeps neither the text of numbers nor integers
// beyond 64 bits, refuses NaN and gives no place of a fault. On-Demand has the text of tokens, but
// leaves numbers, literals, surrogates and what follows the value to the caller, reports bad
// strings without a place, and is compiled for the plain instruction set instead of being
// dispatched at run time. What it would still do for us is commas and brackets. The tests use DOM
// as an oracle for what is JSON.
#include <dflash/core/text.hpp>
#include <dflash/io/json.hpp>
#include <dflash/io/mapped_file.hpp>

#include <algorithm>
#include <cctype>
#include <fmt/format.h>
#include <simdjson.h>

namespace dflash::io {
namespace {

constexpr int kMaxDepth = 1000;

/// First byte that is not part of a valid UTF-8 sequence.
std::size_t first_bad_utf8(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size()) {
        const auto lead = static_cast<unsigned char>(text[at]);
        const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
        const std::string_view sequence = text.substr(at, length);
        if (!simdjson::validate_utf8(sequence.data(), sequence.size())) {
            return at;
        }
        at += length;
    }
    return at;
}

/// `where` with the line and column of a byte; see Json::parse.
std::string place(std::string_view text, std::size_t offset, std::string_view where) {
    const std::string_view before = text.substr(0, offset);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
    const auto column = 1 + std::count_if(before.begin() + static_cast<std::ptrdiff_t>(line_start),
                                          before.end(),
                                          [](char c) { return (c & 0xC0) != 0x80; });
    const std::size_t colon = where.rfind(':');
    const bool has_line = colon != std::string_view::npos && colon + 1 < where.size() &&
                          std::all_of(where.begin() + static_cast<std::ptrdiff_t>(colon) + 1,
                                      where.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
    if (has_line && text.find('\n') == std::string_view::npos) {
        return fmt::format("{}:{}", where, column);
    }
    return fmt::format("{}:{}:{}", where, line, column);
}

void append_utf8(std::string& out, std::uint32_t code_point) {
    const auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
    if (code_point < 0x80) {
        put(code_point);
    } else if (code_point < 0x800) {
        put(0xC0 | code_point >> 6);
        put(0x80 | (code_point & 0x3F));
    } else if (code_point < 0x10000) {
        put(0xE0 | code_point >> 12);
        put(0x80 | (code_point >> 6 & 0x3F));
        put(0x80 | (code_point & 0x3F));
    } else {
        put(0xF0 | code_point >> 18);
        put(0x80 | (code_point >> 12 & 0x3F));
        put(0x80 | (code_point >> 6 & 0x3F));
        put(0x80 | (code_point & 0x3F));
    }
}

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

class Parser {
  public:
    Parser(std::string_view text, std::string_view where) : text_(text), where_(where) {}

    Json parse_document() {
        if (!simdjson::validate_utf8(text_.data(), text_.size())) {
            const std::size_t bad = first_bad_utf8(text_);
            fail(bad,
                 JsonFault::BadUtf8,
                 fmt::format("not UTF-8: found byte 0x{:02x}",
                             static_cast<unsigned char>(text_[bad])));
        }
        Json value = parse_value(0);
        skip_blanks();
        if (at_ < text_.size()) {
            unexpected("the end of the text after the value");
        }
        return value;
    }

  private:
    [[noreturn]] void fail(std::size_t offset, JsonFault fault, std::string what) const {
        throw JsonError(fault,
                        offset,
                        {.what = std::move(what),
                         .where = place(text_, offset, where_),
                         .cause = {},
                         .hint = {}});
    }

    /// Fails at the current byte, or as truncated at the end of the text.
    [[noreturn]] void unexpected(std::string_view expected) const {
        if (at_ >= text_.size()) {
            fail(text_.size(),
                 JsonFault::Truncated,
                 fmt::format("not JSON: found the end of the text, expected {}", expected));
        }
        // A word is shown whole (None, True, undefined), another character alone.
        std::size_t size = 0;
        while (size < 20 && at_ + size < text_.size() &&
               std::isalnum(static_cast<unsigned char>(text_[at_ + size])) != 0) {
            ++size;
        }
        if (size == 0) {
            const auto is_rest = [&](std::size_t i) {
                return i < text_.size() && (text_[i] & 0xC0) == 0x80;
            };
            size = 1;
            while (is_rest(at_ + size)) {
                ++size;
            }
        }
        fail(at_,
             JsonFault::Syntax,
             fmt::format(
                 "not JSON: found {}, expected {}", quote(text_.substr(at_, size)), expected));
    }

    void skip_blanks() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' ||
                                      text_[at_] == '\r' || text_[at_] == '\t')) {
            ++at_;
        }
    }

    bool next_is(char c) const { return at_ < text_.size() && text_[at_] == c; }

    bool take(char c) {
        if (next_is(c)) {
            ++at_;
            return true;
        }
        return false;
    }

    bool take_word(std::string_view word) {
        if (!text_.substr(at_).starts_with(word)) {
            return false;
        }
        const std::size_t end = at_ + word.size();
        if (end < text_.size() && std::isalnum(static_cast<unsigned char>(text_[end])) != 0) {
            return false;
        }
        at_ = end;
        return true;
    }

    Json parse_value(int depth) {
        skip_blanks();
        const char c = at_ < text_.size() ? text_[at_] : '\0';
        if (c == '"') {
            return Json::string(parse_string());
        }
        if (c == '{' || c == '[') {
            if (depth == kMaxDepth) {
                fail(at_,
                     JsonFault::TooDeep,
                     fmt::format("nested too deep: expected at most {} lists and objects inside "
                                 "each other",
                                 kMaxDepth));
            }
            return c == '{' ? parse_object(depth + 1) : parse_array(depth + 1);
        }
        if (take_word("true")) {
            return Json::boolean(true);
        }
        if (take_word("false")) {
            return Json::boolean(false);
        }
        if (take_word("null") || take_word("NaN") || take_word("Infinity") ||
            take_word("-Infinity")) {
            return {};
        }
        if (c == '-' || is_digit(c)) {
            return parse_number();
        }
        unexpected("a JSON value");
    }

    Json parse_array(int depth) {
        ++at_;
        std::vector<Json> items;
        skip_blanks();
        if (!take(']')) {
            for (;;) {
                items.push_back(parse_value(depth));
                skip_blanks();
                if (take(']')) {
                    break;
                }
                if (!take(',')) {
                    unexpected("\",\" or \"]\"");
                }
            }
        }
        return Json::array(std::move(items));
    }

    Json parse_object(int depth) {
        ++at_;
        std::vector<std::pair<std::string, Json>> members;
        skip_blanks();
        if (!take('}')) {
            for (;;) {
                skip_blanks();
                if (!next_is('"')) {
                    unexpected("a key in double quotes");
                }
                std::string key = parse_string();
                skip_blanks();
                if (!take(':')) {
                    unexpected("\":\"");
                }
                members.emplace_back(std::move(key), parse_value(depth));
                skip_blanks();
                if (take('}')) {
                    break;
                }
                if (!take(',')) {
                    unexpected("\",\" or \"}\"");
                }
            }
        }
        return Json::object(std::move(members));
    }

    void take_digits() {
        if (at_ >= text_.size() || !is_digit(text_[at_])) {
            unexpected("a digit");
        }
        while (at_ < text_.size() && is_digit(text_[at_])) {
            ++at_;
        }
    }

    Json parse_number();
    std::string parse_string();
    std::uint32_t parse_hex4();
    std::uint32_t parse_code_point();

    std::string_view text_;
    std::string_view where_;
    std::size_t at_ = 0;  // the next byte to read
};

Json Parser::parse_number() {
    const std::size_t start = at_;
    take('-');
    if (!take('0')) {
        take_digits();
    }
    if (take('.')) {
        take_digits();
    }
    if (take('e') || take('E')) {
        if (!take('+')) {
            take('-');
        }
        take_digits();
    }
    if (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                               text_[at_] == '.' || text_[at_] == '_')) {
        unexpected("the end of a number");
    }
    return Json::number_of_text(std::string(text_.substr(start, at_ - start)));
}

std::string Parser::parse_string() {
    ++at_;
    std::string out;
    for (;;) {
        const std::size_t start = at_;
        while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
               static_cast<unsigned char>(text_[at_]) >= 0x20) {
            ++at_;
        }
        out.append(text_, start, at_ - start);
        if (take('"')) {
            return out;
        }
        if (!take('\\')) {
            unexpected("a double quote (control characters inside text must be escaped)");
        }
        // The two-character escapes of RFC 8259 section 7, and what they stand for.
        constexpr std::string_view kEscapes = "\"\\/bfnrt";
        constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
        const std::size_t which =
            at_ < text_.size() ? kEscapes.find(text_[at_]) : std::string_view::npos;
        if (which != std::string_view::npos) {
            ++at_;
            out += kMeanings[which];
        } else if (take('u')) {
            append_utf8(out, parse_code_point());
        } else {
            unexpected("an escape (one of \" \\ / b f n r t u)");
        }
    }
}

std::uint32_t Parser::parse_hex4() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
        const char c = at_ < text_.size() ? text_[at_] : '\0';
        if (is_digit(c)) {
            value = value * 16 + static_cast<std::uint32_t>(c - '0');
        } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
            value = value * 16 + static_cast<std::uint32_t>((c | 0x20) - 'a' + 10);
        } else {
            unexpected("four hexadecimal digits");
        }
        ++at_;
    }
    return value;
}

/// The rest of an escape after \u: one code point, from two escapes outside the basic plane.
std::uint32_t Parser::parse_code_point() {
    const std::size_t start = at_ - 2;
    const std::uint32_t first = parse_hex4();
    if (first < 0xD800 || first > 0xDFFF) {
        return first;
    }
    if (first <= 0xDBFF && text_.substr(at_).starts_with("\\u")) {
        at_ += 2;
        const std::uint32_t second = parse_hex4();
        if (second >= 0xDC00 && second <= 0xDFFF) {
            return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
        }
    } else if (at_ == text_.size()) {
        unexpected("the rest of a text");
    }
    fail(start,
         JsonFault::HalfSurrogate,
         fmt::format("half a surrogate pair: found {}, expected \\uD800-\\uDBFF followed by "
                     "\\uDC00-\\uDFFF",
                     text_.substr(start, 6)));
}

}  // namespace

JsonError::JsonError(JsonFault fault, std::size_t offset, ErrorParts parts)
    : Error(ErrorKind::Data, std::move(parts)), fault_(fault), offset_(offset) {}

Json Json::parse(std::string_view text, std::string_view where) {
    return Parser(text, where).parse_document();
}

Json read_json_file(const std::string& path) {
    const MappedFile file(path, ErrorKind::Config);
    std::string_view text = file.text();
    if (text.starts_with("\xEF\xBB\xBF")) {
        text.remove_prefix(3);
    }
    try {
        return Json::parse(text, path);
    } catch (const JsonError& error) {
        throw Error(ErrorKind::Config, error.parts());
    }
}

}  // namespace dflash::io
