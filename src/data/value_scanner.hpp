// SPDX-License-Identifier: Apache-2.0
// Where a JSON value ends, without reading what it says: rows of an array, and rows over many
// lines, are found by it.
#pragma once

#include <cstddef>
#include <string_view>

namespace dflash::data {

struct ValueEnd {
    enum class Kind {
        Whole,  ///< `end` is one past the value's last byte
        Cut,    ///< the text ends inside the value
        Wrong,  ///< `end` is a byte that cannot stand there
    };

    Kind kind = Kind::Cut;
    std::size_t end = 0;
};

/// `at` is the first byte of the value. Brackets, strings, commas and colons must be where they
/// belong; keys, words and numbers are not looked at.
ValueEnd find_value_end(std::string_view text, std::size_t at);

/// The first byte at or after `at` that is no blank (space, tab, CR, LF); the size of the text if
/// there is none.
std::size_t skip_json_blanks(std::string_view text, std::size_t at);

}  // namespace dflash::data
