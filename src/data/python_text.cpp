// SPDX-License-Identifier: Apache-2.0
#include "python_text.hpp"

#include "utf8.hpp"

#include <dflash/core/error.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fmt/format.h>

namespace dflash::data {

namespace {

// repr() of a float (CPython float_repr_style "short"): the shortest digits that read back to the
// same value; with an exponent of at least two digits where it is below -4 or from 16 up.
std::string python_float(double value) {
    if (std::isnan(value)) {
        return "NaN";
    }
    if (std::isinf(value)) {
        return value < 0 ? "-Infinity" : "Infinity";
    }
    std::array<char, 40> buffer{};
    const auto end = std::to_chars(buffer.data(),
                                   buffer.data() + buffer.size(),
                                   std::fabs(value),
                                   std::chars_format::scientific)
                         .ptr;
    const std::string_view scientific(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
    const std::size_t e = scientific.find('e');
    std::string digits(1, scientific[0]);
    if (e > 2) {
        digits += scientific.substr(2, e - 2);
    }
    int exponent = 0;
    std::from_chars(scientific.data() + e + 2, end, exponent);
    exponent = scientific[e + 1] == '-' ? -exponent : exponent;
    const int num_digits = static_cast<int>(digits.size());
    std::string text = std::signbit(value) ? "-" : "";
    if (exponent < -4 || exponent >= 16) {
        text += digits[0];
        if (num_digits > 1) {
            text += '.' + digits.substr(1);
        }
        text += fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
    } else if (exponent < 0) {
        text += "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
    } else if (num_digits <= exponent + 1) {
        text +=
            digits + std::string(static_cast<std::size_t>(exponent + 1 - num_digits), '0') + ".0";
    } else {
        digits.insert(static_cast<std::size_t>(exponent) + 1, 1, '.');
        text += digits;
    }
    return text;
}

// Integers have any length in Python; "-0" is one of them, and has no sign.
std::string python_number(const io::Json& value) {
    const std::string& text = value.number_text();
    if (text.find_first_of(".eE") != std::string::npos) {
        return python_float(std::strtod(text.c_str(), nullptr));
    }
    return text == "-0" ? "0" : text;
}

// The escapes of json.dumps with ensure_ascii=False: U+007F, U+2028 and "/" stay as they are.
void append_string(std::string& out, std::string_view text) {
    out += '"';
    for (const char c : text) {
        switch (c) {
            case '"':
                out += "\\\"";
                break;
            case '\\':
                out += "\\\\";
                break;
            case '\n':
                out += "\\n";
                break;
            case '\r':
                out += "\\r";
                break;
            case '\t':
                out += "\\t";
                break;
            case '\b':
                out += "\\b";
                break;
            case '\f':
                out += "\\f";
                break;
            default:
                if (static_cast<unsigned char>(c) < 0x20) {
                    out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
                } else {
                    out += c;
                }
        }
    }
    out += '"';
}

// Separators of json.dumps: on one line, or one part a line with `indent` spaces a level.
struct Layout {
    int indent = 0;  // 0: one line
    int depth = 0;

    Layout inner() const { return {.indent = indent, .depth = depth + 1}; }

    void begin_part(std::string& out, bool is_first) const {
        out += is_first ? "" : indent == 0 ? ", " : ",";
        break_line(out, depth + 1);
    }

    void end_parts(std::string& out) const { break_line(out, depth); }

  private:
    void break_line(std::string& out, int level) const {
        if (indent > 0) {
            out += '\n';
            out.append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(level), ' ');
        }
    }
};

// Recursion is bounded by the parser's limit of nesting.
void append_json(std::string& out, const io::Json& value, Layout layout) {
    switch (value.kind()) {
        case io::Json::Kind::Null:
            out += "null";
            break;
        case io::Json::Kind::Bool:
            out += value.as_bool() ? "true" : "false";
            break;
        case io::Json::Kind::Number:
            out += python_number(value);
            break;
        case io::Json::Kind::String:
            append_string(out, value.as_string());
            break;
        case io::Json::Kind::Array: {
            bool is_first = true;
            out += '[';
            for (const io::Json& item : value.items()) {
                layout.begin_part(out, is_first);
                append_json(out, item, layout.inner());
                is_first = false;
            }
            if (!is_first) {
                layout.end_parts(out);
            }
            out += ']';
            break;
        }
        case io::Json::Kind::Object: {
            bool is_first = true;
            out += '{';
            for (const auto& [key, member] : value.members()) {
                layout.begin_part(out, is_first);
                append_string(out, key);
                out += ": ";
                append_json(out, member, layout.inner());
                is_first = false;
            }
            if (!is_first) {
                layout.end_parts(out);
            }
            out += '}';
            break;
        }
    }
}

// str.isspace(): bidirectional type WS, B or S, or category Zs; so U+001C-001F, but not U+180E,
// U+200B or U+FEFF.
bool is_python_space(char32_t c) {
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

}  // namespace

std::string python_json(const io::Json& value) {
    std::string out;
    append_json(out, value, {});
    return out;
}

std::string python_json_indented(const io::Json& value) {
    std::string out;
    append_json(out, value, {.indent = 4});
    return out;
}

std::string python_str(const io::Json& value) {
    switch (value.kind()) {
        case io::Json::Kind::Null:
            return "None";
        case io::Json::Kind::Bool:
            return value.as_bool() ? "True" : "False";
        case io::Json::Kind::Number: {
            // The one value that str() and json.dumps() spell differently.
            const double number = value.to_double();
            if (std::isinf(number) &&
                value.number_text().find_first_of(".eE") != std::string::npos) {
                return number < 0 ? "-inf" : "inf";
            }
            return python_number(value);
        }
        case io::Json::Kind::String:
            return value.as_string();
        case io::Json::Kind::Array:
        case io::Json::Kind::Object:
            break;
    }
    throw Error(
        ErrorKind::Data,
        {.what = fmt::format("{} where the chat template prints a plain value", value.kind_name()),
         .where = {},
         .cause = {},
         .hint = {}});
}

std::string_view python_strip(std::string_view text) {
    while (!text.empty()) {
        const Utf8Step first = step_utf8(text, 0);
        if (!is_python_space(first.code_point)) {
            break;
        }
        text.remove_prefix(first.length);
    }
    return python_rstrip(text);
}

std::string_view python_rstrip(std::string_view text) {
    while (!text.empty()) {
        const std::size_t begin = character_begin(text, text.size() - 1);
        if (!is_python_space(step_utf8(text, begin).code_point)) {
            break;
        }
        text.remove_suffix(text.size() - begin);
    }
    return text;
}

std::string_view strip_leading_newlines(std::string_view text) {
    return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

std::string_view strip_trailing_newlines(std::string_view text) {
    return text.substr(0, text.find_last_not_of('\n') + 1);
}

std::string_view strip_newlines(std::string_view text) {
    return strip_leading_newlines(strip_trailing_newlines(text));
}

}  // namespace dflash::data
