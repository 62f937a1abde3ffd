// SPDX-License-Identifier: Apache-2.0
// UTF-8 as bytes: characters one by one, the first fault of a text, and the repair of broken text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dflash::data {

/// What stands at one place of a byte string.
struct Utf8Step {
    char32_t code_point = 0;  ///< 0 if not valid
    std::size_t length = 0;   ///< bytes of the character, or of the broken part to pass over
    bool valid = false;
};

/// Looks at `text[at]`, at < text.size(). A broken part is the longest prefix of a well-formed
/// sequence that stands there, at least one byte: Unicode 16, section 3.9, "maximal subpart", which
/// is also the rule of Rust's String::from_utf8_lossy.
Utf8Step step_utf8(std::string_view text, std::size_t at);

/// End of the run of ASCII that begins at `at`; `at` itself if there is none.
std::size_t find_ascii_end(std::string_view text, std::size_t at);

/// Place of the first byte that is not part of well-formed UTF-8.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

/// The text with U+FFFD in place of each broken part.
std::string repair_utf8(std::string text);

/// First byte of the character that `at` lies in. The text is well-formed.
inline std::size_t character_begin(std::string_view text, std::size_t at) {
    while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) {
        --at;
    }
    return at;
}

/// The smallest end of a character at or after `at`. The text is well-formed.
inline std::size_t character_end(std::string_view text, std::size_t at) {
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) {
        ++at;
    }
    return at;
}

/// Characters of well-formed text.
inline std::int64_t count_characters(std::string_view text) {
    return std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
    });
}

void append_utf8(std::string& text, char32_t code_point);

}  // namespace dflash::data
