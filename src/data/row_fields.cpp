// SPDX-License-Identifier: Apache-2.0
#include "row_fields.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>

#include <algorithm>

namespace dflash::data {

Field first_field(const io::Json& object,
                  std::initializer_list<std::string_view> keys,
                  const std::string& place) {
    for (const std::string_view key : keys) {
        const io::Json* value = object.find(key);
        if (value == nullptr) {
            continue;
        }
        if (object.count(key) > 1) {
            refuse("duplicate_key",
                   "the key {} stands more than once in {}",
                   key,
                   place.empty() ? "the row" : place);
        }
        if (!value->is_null()) {
            return {.name = std::string(key),
                    .place = place.empty() ? std::string(key) : fmt::format("{}.{}", place, key),
                    .value = value};
        }
    }
    return {};
}

Field RowFields::take(std::initializer_list<std::string_view> keys) {
    Field field = first_field(row_, keys, "");
    if (field) {
        add_once(read_, field.name);
    }
    return field;
}

std::vector<std::string> RowFields::unread() const {
    std::vector<std::string> names;
    for (const auto& [key, value] : row_.members()) {
        if (!value.is_null() && std::find(read_.begin(), read_.end(), key) == read_.end()) {
            add_once(names, key);
        }
    }
    return names;
}

void add_once(std::vector<std::string>& names, std::string name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(std::move(name));
    }
}

const std::string& text_of(const Field& field, std::string_view expected) {
    if (!field.value->is_string()) {
        refuse(
            "wrong_type", "{} is {}, not {}", field.place, describe_found(*field.value), expected);
    }
    return field.value->as_string();
}

// A list of texts is named as such: it is the most usual wrong value of an answer.
std::string describe_found(const io::Json& value) {
    if (value.is_number()) {
        return fmt::format("the number {}", value.number_text().substr(0, 40));
    }
    if (value.is_bool()) {
        return value.as_bool() ? "true" : "false";
    }
    if (value.is_array() && !value.items().empty() &&
        std::all_of(value.items().begin(), value.items().end(), [](const io::Json& item) {
            return item.is_string();
        })) {
        return "a list of texts";
    }
    return std::string(value.kind_name());
}

void refuse_duplicate_keys(const io::Json& value, const std::string& place) {
    if (value.is_array()) {
        for (std::size_t i = 0; i < value.items().size(); ++i) {
            refuse_duplicate_keys(value.items()[i], fmt::format("{}[{}]", place, i));
        }
    } else if (value.is_object()) {
        std::vector<std::string_view> keys;
        keys.reserve(value.members().size());
        for (const auto& [key, member] : value.members()) {
            keys.push_back(key);
            refuse_duplicate_keys(member, fmt::format("{}.{}", place, key));
        }
        std::sort(keys.begin(), keys.end());
        const auto twice = std::adjacent_find(keys.begin(), keys.end());
        if (twice != keys.end()) {
            refuse("duplicate_key", "the key {} stands more than once in {}", *twice, place);
        }
    }
}

io::Json list_of(const Field& field, const char* kind) {
    if (field.value->is_array()) {
        return *field.value;
    }
    if (!field.value->is_string()) {
        refuse(kind, "{} is {}, not a list", field.place, describe_found(*field.value));
    }
    const std::string& text = field.value->as_string();
    // Columns of Parquet and CSV exports often hold lists as JSON text.
    io::Json list;
    try {
        list = io::Json::parse(text, field.place);
    } catch (const Error&) {
        list = {};
    }
    if (!list.is_array()) {
        refuse(kind, "{} is a text that is not a JSON list: {}", field.place, quote(text, 40));
    }
    return list;
}

}  // namespace dflash::data
