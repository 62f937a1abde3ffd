// SPDX-License-Identifier: Apache-2.0
// JSON values with what this program needs to keep: the order of keys, the text of numbers
// (integers of any length), and the place of a fault. UTF-8 is checked by simdjson; src/io/
// json_parse.cpp says why the rest is not.
#pragma once

#include <dflash/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dflash::io {

/// Why a text is not a JSON value.
enum class JsonFault {
    Syntax,         ///< a wrong character somewhere
    Truncated,      ///< the text ends before the value does (also: it is empty)
    BadUtf8,        ///< bytes that are not UTF-8
    HalfSurrogate,  ///< an escape \uD800..\uDFFF without its other half
    TooDeep,        ///< more than 1000 lists and objects inside each other
};

/// What Json::parse throws: an Error{Data} whose place is path:line:column, with the fault as a
/// value for callers that count or translate faults.
class JsonError : public Error {
  public:
    JsonError(JsonFault fault, std::size_t offset, ErrorParts parts);

    JsonFault fault() const noexcept { return fault_; }

    /// Byte of the text where the fault was found; the size of the text for Truncated.
    std::size_t offset() const noexcept { return offset_; }

  private:
    JsonFault fault_;
    std::size_t offset_;
};

/// One JSON value. Copies are deep. Const members may be called from any thread.
class Json {
  public:
    enum class Kind { Null, Bool, Number, String, Array, Object };

    Json() = default;

    static Json boolean(bool value);
    static Json string(std::string value);
    static Json number(double value);  ///< NaN and infinities become null: JSON has none
    static Json integer(std::int64_t value);

    /// A number with exactly this text, which must be one by the grammar of JSON (not checked).
    static Json number_of_text(std::string text);
    static Json array(std::vector<Json> items = {});
    static Json object(std::vector<std::pair<std::string, Json>> members = {});

    /// Parses exactly one value. `where` (a path, or path and line) goes into errors.
    ///
    /// Accepts what Python's json module writes: NaN, Infinity and -Infinity read as null. Refuses
    /// nesting deeper than 1000, invalid UTF-8 and half surrogate pairs. Duplicate keys are kept
    /// (see find). Throws JsonError (an Error{Data}) with `where` extended by ":line:column" of the
    /// fault; only by ":column" when the text is one line and `where` ends in a line number already
    /// ("rows.jsonl:7"). Both count from 1; columns count characters.
    static Json parse(std::string_view text, std::string_view where);

    Kind kind() const { return kind_; }

    bool is_null() const { return kind_ == Kind::Null; }

    bool is_bool() const { return kind_ == Kind::Bool; }

    bool is_number() const { return kind_ == Kind::Number; }

    bool is_string() const { return kind_ == Kind::String; }

    bool is_array() const { return kind_ == Kind::Array; }

    bool is_object() const { return kind_ == Kind::Object; }

    /// "null", "true or false", "a number", "text", "a list", "an object": for messages.
    std::string_view kind_name() const;

    // Accessors of a known kind; an internal error for another kind (callers check first).
    bool as_bool() const;
    const std::string& as_string() const;
    const std::string& number_text() const;  ///< as written: "1e5", "12345678901234567890"
    const std::vector<Json>& items() const;
    const std::vector<std::pair<std::string, Json>>& members() const;
    std::vector<Json>& items();
    std::vector<std::pair<std::string, Json>>& members();

    /// Value of a number (too large: infinity). to_integer is empty for fractions and values
    /// outside int64; 1e5 and 2.0 are integers.
    double to_double() const;
    std::optional<std::int64_t> to_integer() const;

    /// Member of an object, or null (also when this is no object). With duplicate keys: the last,
    /// as Python does.
    const Json* find(std::string_view key) const;

    /// How often a key stands in this object.
    std::size_t count(std::string_view key) const;

    /// Adds a member, or replaces the value of the last one of that name.
    void set(std::string key, Json value);

    // Reading of configuration files. Throw Error{Config} naming `where`, the key, what was found
    // and what is expected.
    std::int64_t require_integer(std::string_view key, std::string_view where) const;
    double require_number(std::string_view key, std::string_view where) const;
    std::string require_string(std::string_view key, std::string_view where) const;
    std::optional<std::int64_t> optional_integer(std::string_view key,
                                                 std::string_view where) const;  // null = absent
    std::optional<double> optional_number(std::string_view key, std::string_view where) const;
    std::optional<bool> optional_bool(std::string_view key, std::string_view where) const;
    std::optional<std::string> optional_string(std::string_view key, std::string_view where) const;

    /// Compact JSON on one line, ", " and ": " between parts, non-ASCII text as it is; numbers as
    /// they were written.
    std::string dump() const;

    /// The same over several lines.
    std::string dump_pretty(int indent = 2) const;

    friend bool operator==(const Json&, const Json&) = default;

  private:
    Kind kind_ = Kind::Null;
    bool bool_ = false;
    std::string text_;  // of strings and numbers
    std::vector<Json> items_;
    std::vector<std::pair<std::string, Json>> members_;
};

/// Reads a whole file as one JSON value; a byte order mark is skipped. Throws Error{Config} if it
/// cannot be read or parsed.
Json read_json_file(const std::string& path);

}  // namespace dflash::io
