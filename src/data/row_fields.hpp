// SPDX-License-Identifier: Apache-2.0
// Reading fields of a row so that a fault names the field ("messages[1].role") and what was found.
#pragma once

#include <dflash/data/row.hpp>
#include <dflash/io/json.hpp>

#include <fmt/format.h>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dflash::data {

/// Thrown by the readers of rows, caught by read_row and read_messages.
struct RowRefusal {
    RowFault fault;
};

template <class... Args>
[[noreturn]] void refuse(std::string kind, fmt::format_string<Args...> format, Args&&... args) {
    throw RowRefusal{
        {.kind = std::move(kind), .message = fmt::format(format, std::forward<Args>(args)...)}};
}

/// A member that was looked for: its name, its path for messages, its value (null if absent).
struct Field {
    std::string name;
    std::string place;
    const io::Json* value = nullptr;

    explicit operator bool() const { return value != nullptr; }
};

/// The first of the keys that stands in the object with a value other than null. Refuses a key that
/// stands twice. `place` is the path of the object; empty for the row itself.
Field first_field(const io::Json& object,
                  std::initializer_list<std::string_view> keys,
                  const std::string& place);

/// The fields of a row, and which of them were read.
class RowFields {
  public:
    explicit RowFields(const io::Json& row) : row_(row) {}

    /// first_field of the row; what is found counts as read.
    Field take(std::initializer_list<std::string_view> keys);

    /// Names of fields with values other than null that were not read, each once.
    std::vector<std::string> unread() const;

  private:
    const io::Json& row_;
    std::vector<std::string> read_;
};

/// Adds a name to a short list of names, unless it is there.
void add_once(std::vector<std::string>& names, std::string name);

/// The text of a field; refuses other values with `expected` as in "a text".
const std::string& text_of(const Field& field, std::string_view expected = "text");

/// "text", "a list of texts", "a list", "the number 42": what was found, for messages.
std::string describe_found(const io::Json& value);

/// Refuses an object that has a key twice, at any depth.
void refuse_duplicate_keys(const io::Json& value, const std::string& place);

/// A list, or the list that a text holds as JSON; refuses everything else, by default with kind
/// wrong_type.
io::Json list_of(const Field& field, const char* kind = "wrong_type");

}  // namespace dflash::data
