// SPDX-License-Identifier: Apache-2.0
// Configuration files and single values in TOML notation, as values of core's settings.
#pragma once

#include <dflash/core/settings.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace dflash::io {

/// One value of a file: `[train]` with `lr = 6e-4` gives key "train.lr".
struct TomlEntry {
    std::string key;     ///< dotted; parts that hold a dot or a quote are quoted as in TOML
    SettingValue value;  ///< never monostate; a list of integers and fractions is one of numbers
    std::string place;   ///< "configs/tiny-cpu.toml:14:1", where the key stands
};

/// The values of a file, in the order they stand there; inline tables count as sections. Throws
/// Error{Config} if the file cannot be read, is no TOML (place and what was found), or holds a
/// value that no setting has: dates, lists of anything but numbers, lists of tables.
std::vector<TomlEntry> read_toml_file(const std::string& path);

/// The same for a text; `path` goes into places.
std::vector<TomlEntry> parse_toml(std::string_view text, const std::string& path);

/// One value, as it stands on a command line: in TOML notation (`6e-4`, `[1, 2]`, `"text"`), or a
/// bare word, which is text (`cosine`, `30min`, `/data/rows.jsonl`, nothing). Throws Error{Config}
/// at `place` if it begins like a TOML text, list or table and is none.
SettingValue parse_toml_value(std::string_view text, std::string_view place);

/// `KEY=VALUE` of a `--set` option: the part before the first "=" without blanks, and the value as
/// parse_toml_value reads it. Throws Error{Config} without "=" or without a key.
TomlEntry parse_assignment(std::string_view text, std::string_view place);

}  // namespace dflash::io
