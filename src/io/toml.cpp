// SPDX-License-Identifier: Apache-2.0
// toml++ parses; here its tree becomes a list of settings with places.
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/mapped_file.hpp>
#include <dflash/io/toml.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <toml++/toml.h>
#include <utility>

namespace dflash::io {
namespace {

[[noreturn]] void fail(std::string what, std::string where, std::string cause = {}) {
    throw Error(ErrorKind::Config,
                {.what = std::move(what),
                 .where = std::move(where),
                 .cause = std::move(cause),
                 .hint = {}});
}

std::string place_of(const toml::source_region& region, const std::string& path) {
    return fmt::format("{}:{}:{}", path, region.begin.line, region.begin.column);
}

/// "a list" and so on: what a value is, for messages.
std::string_view kind_of(const toml::node& node) {
    switch (node.type()) {
        case toml::node_type::date:
            return "a date";
        case toml::node_type::time:
            return "a time of day";
        case toml::node_type::date_time:
            return "a date and time";
        case toml::node_type::array:
            return "a list";
        case toml::node_type::table:
            return "a table";
        case toml::node_type::string:
            return "text";
        case toml::node_type::boolean:
            return "true or false";
        default:
            return "a number";
    }
}

/// A list of numbers; nothing if `array` holds anything else.
std::optional<SettingValue> list_value(const toml::array& array) {
    std::vector<std::int64_t> integers;
    std::vector<double> numbers;
    for (const toml::node& item : array) {
        if (const auto* integer = item.as_integer()) {
            integers.push_back(integer->get());
            numbers.push_back(static_cast<double>(integer->get()));
        } else if (const auto* number = item.as_floating_point()) {
            numbers.push_back(number->get());
        } else {
            return std::nullopt;
        }
    }
    if (integers.size() == numbers.size()) {
        return integers;
    }
    return numbers;
}

/// The value of a node that is no table; nothing if no setting can hold it.
std::optional<SettingValue> value_of(const toml::node& node) {
    if (const auto* boolean = node.as_boolean()) {
        return boolean->get();
    }
    if (const auto* integer = node.as_integer()) {
        return integer->get();
    }
    if (const auto* number = node.as_floating_point()) {
        return number->get();
    }
    if (const auto* text = node.as_string()) {
        return text->get();
    }
    if (const auto* array = node.as_array()) {
        return list_value(*array);
    }
    return std::nullopt;
}

/// An entry with what toml++ loses: its tables are sorted by key.
struct PlacedEntry {
    toml::source_position position;
    TomlEntry entry;
};

/// Appends the values under a table; `prefix` ends in a dot or is empty.
void collect(const toml::table& table,
             const std::string& prefix,
             const std::string& path,
             std::vector<PlacedEntry>& entries) {
    for (const auto& [key, node] : table) {
        const std::string_view part = key.str();
        const bool is_plain =
            !part.empty() && part.find_first_of(".\"' ") == std::string_view::npos;
        const std::string name = prefix + (is_plain ? std::string(part) : quote(part));
        if (const toml::table* inner = node.as_table()) {
            collect(*inner, name + ".", path, entries);
            continue;
        }
        const std::string place = place_of(key.source(), path);
        std::optional<SettingValue> value = value_of(node);
        if (!value) {
            fail(fmt::format(
                     "{}: got {}, expected true, false, a number, text, or a list of numbers",
                     name,
                     node.is_array() ? "a list of other things than numbers" : kind_of(node)),
                 place);
        }
        entries.push_back({key.source().begin, {name, std::move(*value), place}});
    }
}

}  // namespace

std::vector<TomlEntry> parse_toml(std::string_view text, const std::string& path) {
    std::vector<PlacedEntry> placed;
    try {
        collect(toml::parse(text, path), "", path, placed);
    } catch (const toml::parse_error& error) {
        fail("not TOML", place_of(error.source(), path), std::string(error.description()));
    }
    std::stable_sort(placed.begin(), placed.end(), [](const PlacedEntry& a, const PlacedEntry& b) {
        return a.position < b.position;
    });
    std::vector<TomlEntry> entries;
    entries.reserve(placed.size());
    for (PlacedEntry& p : placed) {
        entries.push_back(std::move(p.entry));
    }
    return entries;
}

std::vector<TomlEntry> read_toml_file(const std::string& path) {
    const MappedFile file(path, ErrorKind::Config);
    return parse_toml(file.text(), path);
}

SettingValue parse_toml_value(std::string_view text, std::string_view place) {
    const std::size_t first = text.find_first_not_of(" \t");
    if (first == std::string_view::npos) {
        return std::string();
    }
    text = text.substr(first, text.find_last_not_of(" \t") - first + 1);
    // A line end would let one option set several keys.
    const bool one_line = text.find_first_of("\r\n") == std::string_view::npos;
    // What begins like TOML was meant as TOML: a typing error in it must not become a text.
    const bool looks_like_toml =
        std::string_view("\"'[{").find(text.front()) != std::string_view::npos;
    std::string cause;
    if (one_line) {
        try {
            const toml::table table = toml::parse(fmt::format("value = {}", text));
            if (auto value = value_of(*table.get("value"))) {
                return std::move(*value);
            }
            cause = fmt::format("found {}", kind_of(*table.get("value")));
        } catch (const toml::parse_error& error) {
            cause = error.description();
        }
    } else {
        cause = "found a line end";
    }
    if (looks_like_toml || !one_line) {
        fail(fmt::format(
                 "got {}, expected a value in TOML notation: true, 3, 6e-4, \"text\", [1, 2]",
                 quote(text)),
             std::string(place),
             std::move(cause));
    }
    return std::string(text);
}

TomlEntry parse_assignment(std::string_view text, std::string_view place) {
    const std::size_t equals = text.find('=');
    std::string_view key = text.substr(0, equals);
    const std::size_t first = key.find_first_not_of(" \t");
    if (equals == std::string_view::npos || first == std::string_view::npos) {
        fail(fmt::format("got {}, expected KEY=VALUE, as in train.lr=1e-4", quote(text)),
             std::string(place));
    }
    key = key.substr(first, key.find_last_not_of(" \t") - first + 1);
    return {std::string(key), parse_toml_value(text.substr(equals + 1), place), std::string(place)};
}

}  // namespace dflash::io
