// SPDX-License-Identifier: Apache-2.0
// Texts as Python prints and strips them: chat templates are run by Python, so what a target saw in
// its own training follows Python's rules.
#pragma once

#include <dflash/io/json.hpp>

#include <string>
#include <string_view>

namespace dflash::data {

/// json.dumps(value, ensure_ascii=False) of what json.loads read: ", " and ": " between parts, keys
/// in their order, integers of any length as written, floats in their shortest form.
std::string python_json(const io::Json& value);

/// json.dumps(value, ensure_ascii=False, indent=4).
std::string python_json_indented(const io::Json& value);

/// str(value) of text, number, True, False or None; Error{Data} for lists and objects, which
/// Python prints in a notation of its own.
std::string python_str(const io::Json& value);

/// str.strip() of UTF-8 text: white space of Python's str.isspace() off both ends.
std::string_view python_strip(std::string_view text);
std::string_view python_rstrip(std::string_view text);  ///< off the end only

/// str.strip("\n"), lstrip("\n"), rstrip("\n").
std::string_view strip_newlines(std::string_view text);
std::string_view strip_leading_newlines(std::string_view text);
std::string_view strip_trailing_newlines(std::string_view text);

}  // namespace dflash::data
