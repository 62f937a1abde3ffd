// SPDX-License-Identifier: Apache-2.0
// Json values: construction, access, reading of configuration, and writing. Parsing is in
// json_parse.cpp.
#include <dflash/core/check.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fmt/format.h>

namespace dflash::io {
namespace {

/// A value as a message shows it: short, printable.
std::string brief(const Json& value) {
    switch (value.kind()) {
        case Json::Kind::String:
            return quote(value.as_string(), 60);
        case Json::Kind::Number:
        case Json::Kind::Bool: {
            const std::string text = value.dump();
            return text.size() <= 40 ? text : text.substr(0, 37) + "...";
        }
        default:
            return std::string(value.kind_name());
    }
}

/// The error of a configuration value: "KEY: got X, expected Y".
[[noreturn]] void reject(std::string_view key,
                         std::string_view where,
                         std::string_view got,
                         std::string_view expected) {
    throw Error(ErrorKind::Config,
                {.what = fmt::format("{}: got {}, expected {}", key, got, expected),
                 .where = std::string(where),
                 .cause = {},
                 .hint = {}});
}

/// The member of a configuration object; null if it is absent or null.
const Json* configured(const Json& object,
                       std::string_view key,
                       std::string_view where,
                       std::string_view expected) {
    if (!object.is_object()) {
        reject(key, where, object.kind_name(), fmt::format("an object with {} in it", expected));
    }
    const Json* value = object.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
}

/// The same; null or absent is an error.
const Json& required(const Json& object,
                     std::string_view key,
                     std::string_view where,
                     std::string_view expected) {
    const Json* value = configured(object, key, where, expected);
    if (value == nullptr) {
        reject(key, where, object.count(key) > 0 ? "null" : "nothing", expected);
    }
    return *value;
}

std::int64_t integer_of(const Json& value, std::string_view key, std::string_view where) {
    const auto integer = value.is_number() ? value.to_integer() : std::nullopt;
    if (!integer) {
        reject(key, where, brief(value), "an integer");
    }
    return *integer;
}

/// A number of a configuration must be finite: 1e999 would reach the maths as infinity.
double number_of(const Json& value, std::string_view key, std::string_view where) {
    if (!value.is_number() || !std::isfinite(value.to_double())) {
        reject(key, where, brief(value), "a number");
    }
    return value.to_double();
}

const std::string& string_of(const Json& value, std::string_view key, std::string_view where) {
    if (!value.is_string()) {
        reject(key, where, brief(value), "text");
    }
    return value.as_string();
}

/// Escapes as Python's json.dumps(ensure_ascii=False) does, so that texts of both compare equal.
void append_quoted(std::string& out, std::string_view text) {
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
                    out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
                } else {
                    out += c;
                }
        }
    }
    out += '"';
}

/// Writes values; indent < 0 puts everything on one line.
class Writer {
  public:
    explicit Writer(int indent) : indent_(indent) {}

    void write(const Json& value, int depth) {
        switch (value.kind()) {
            case Json::Kind::Null:
                out_ += "null";
                break;
            case Json::Kind::Bool:
                out_ += value.as_bool() ? "true" : "false";
                break;
            case Json::Kind::Number:
                out_ += value.number_text();
                break;
            case Json::Kind::String:
                append_quoted(out_, value.as_string());
                break;
            case Json::Kind::Array:
                write_list(value.items(), '[', ']', depth, [&](const Json& item) {
                    write(item, depth + 1);
                });
                break;
            case Json::Kind::Object:
                write_list(value.members(), '{', '}', depth, [&](const auto& member) {
                    append_quoted(out_, member.first);
                    out_ += ": ";
                    write(member.second, depth + 1);
                });
                break;
        }
    }

    std::string take() { return std::move(out_); }

  private:
    template <class List, class WriteOne>
    void write_list(const List& list, char open, char close, int depth, WriteOne write_one) {
        out_ += open;
        bool first = true;
        for (const auto& element : list) {
            if (!first) {
                out_ += indent_ < 0 ? ", " : ",";
            }
            first = false;
            break_line(depth + 1);
            write_one(element);
        }
        if (!first) {
            break_line(depth);
        }
        out_ += close;
    }

    void break_line(int depth) {
        if (indent_ >= 0) {
            out_ += '\n';
            out_.append(static_cast<std::size_t>(indent_) * static_cast<std::size_t>(depth), ' ');
        }
    }

    int indent_;
    std::string out_;
};

}  // namespace

Json Json::boolean(bool value) {
    Json json;
    json.kind_ = Kind::Bool;
    json.bool_ = value;
    return json;
}

Json Json::string(std::string value) {
    Json json;
    json.kind_ = Kind::String;
    json.text_ = std::move(value);
    return json;
}

Json Json::number(double value) {
    if (!std::isfinite(value)) {
        return {};
    }
    // Shortest text that reads back to the same value; the point keeps it a number with a fraction
    // for readers that tell the two apart.
    std::string text = fmt::format("{}", value);
    if (text.find_first_of(".e") == std::string::npos) {
        text += ".0";
    }
    return number_of_text(std::move(text));
}

Json Json::integer(std::int64_t value) {
    return number_of_text(fmt::format("{}", value));
}

Json Json::number_of_text(std::string text) {
    Json json;
    json.kind_ = Kind::Number;
    json.text_ = std::move(text);
    return json;
}

Json Json::array(std::vector<Json> items) {
    Json json;
    json.kind_ = Kind::Array;
    json.items_ = std::move(items);
    return json;
}

Json Json::object(std::vector<std::pair<std::string, Json>> members) {
    Json json;
    json.kind_ = Kind::Object;
    json.members_ = std::move(members);
    return json;
}

std::string_view Json::kind_name() const {
    switch (kind_) {
        case Kind::Null:
            return "null";
        case Kind::Bool:
            return "true or false";
        case Kind::Number:
            return "a number";
        case Kind::String:
            return "text";
        case Kind::Array:
            return "a list";
        case Kind::Object:
            return "an object";
    }
    return "null";
}

bool Json::as_bool() const {
    DFLASH_CHECK(is_bool(), "a JSON value is {}", kind_name());
    return bool_;
}

const std::string& Json::as_string() const {
    DFLASH_CHECK(is_string(), "a JSON value is {}", kind_name());
    return text_;
}

const std::string& Json::number_text() const {
    DFLASH_CHECK(is_number(), "a JSON value is {}", kind_name());
    return text_;
}

const std::vector<Json>& Json::items() const {
    DFLASH_CHECK(is_array(), "a JSON value is {}", kind_name());
    return items_;
}

std::vector<Json>& Json::items() {
    DFLASH_CHECK(is_array(), "a JSON value is {}", kind_name());
    return items_;
}

const std::vector<std::pair<std::string, Json>>& Json::members() const {
    DFLASH_CHECK(is_object(), "a JSON value is {}", kind_name());
    return members_;
}

std::vector<std::pair<std::string, Json>>& Json::members() {
    DFLASH_CHECK(is_object(), "a JSON value is {}", kind_name());
    return members_;
}

double Json::to_double() const {
    const std::string& text = number_text();
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range) {
        // from_chars leaves open in which direction; strtod gives infinity or (almost) zero.
        return std::strtod(text.c_str(), nullptr);
    }
    return value;
}

std::optional<std::int64_t> Json::to_integer() const {
    const std::string& text = number_text();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (end == text.data() + text.size()) {
        return error == std::errc() ? std::optional(value) : std::nullopt;
    }
    // Written with a point or an exponent: an integer if it is one exactly; doubles hold all
    // integers up to 2^53.
    const double number = to_double();
    if (std::abs(number) <= 0x1.0p53 && number == std::floor(number)) {
        return static_cast<std::int64_t>(number);
    }
    return std::nullopt;
}

const Json* Json::find(std::string_view key) const {
    // Members stay a list: objects are small or walked in order, and order and duplicates count.
    const auto found = std::find_if(
        members_.rbegin(), members_.rend(), [&](const auto& m) { return m.first == key; });
    return found == members_.rend() ? nullptr : &found->second;
}

std::size_t Json::count(std::string_view key) const {
    return static_cast<std::size_t>(std::count_if(
        members_.begin(), members_.end(), [&](const auto& m) { return m.first == key; }));
}

void Json::set(std::string key, Json value) {
    DFLASH_CHECK(is_object(), "a JSON value is {}", kind_name());
    const auto found = std::find_if(
        members_.rbegin(), members_.rend(), [&](const auto& m) { return m.first == key; });
    if (found == members_.rend()) {
        members_.emplace_back(std::move(key), std::move(value));
    } else {
        found->second = std::move(value);
    }
}

std::int64_t Json::require_integer(std::string_view key, std::string_view where) const {
    return integer_of(required(*this, key, where, "an integer"), key, where);
}

double Json::require_number(std::string_view key, std::string_view where) const {
    return number_of(required(*this, key, where, "a number"), key, where);
}

std::string Json::require_string(std::string_view key, std::string_view where) const {
    return string_of(required(*this, key, where, "text"), key, where);
}

std::optional<std::int64_t> Json::optional_integer(std::string_view key,
                                                   std::string_view where) const {
    const Json* value = configured(*this, key, where, "an integer");
    return value == nullptr ? std::nullopt : std::optional(integer_of(*value, key, where));
}

std::optional<double> Json::optional_number(std::string_view key, std::string_view where) const {
    const Json* value = configured(*this, key, where, "a number");
    return value == nullptr ? std::nullopt : std::optional(number_of(*value, key, where));
}

std::optional<bool> Json::optional_bool(std::string_view key, std::string_view where) const {
    const Json* value = configured(*this, key, where, "true or false");
    if (value == nullptr) {
        return std::nullopt;
    }
    if (!value->is_bool()) {
        reject(key, where, brief(*value), "true or false");
    }
    return value->as_bool();
}

std::optional<std::string> Json::optional_string(std::string_view key,
                                                 std::string_view where) const {
    const Json* value = configured(*this, key, where, "text");
    return value == nullptr ? std::nullopt : std::optional(string_of(*value, key, where));
}

std::string Json::dump() const {
    Writer writer(-1);
    writer.write(*this, 0);
    return writer.take();
}

std::string Json::dump_pretty(int indent) const {
    Writer writer(indent);
    writer.write(*this, 0);
    return writer.take();
}

}  // namespace dflash::io
