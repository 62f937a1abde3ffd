// SPDX-License-Identifier: Apache-2.0
// The GPT-2 alphabet that byte-level vocabularies are written in: one printable character for each
// byte. Bytes 33-126, 161-172 and 174-255 stand for the character of the same number, the other 68,
// in rising order, for U+0100, U+0101, ...
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dflash::data {

/// The letter of a byte, as UTF-8.
std::string byte_letter(unsigned char byte);

/// The bytes that a name spells; empty if a character of it is no byte letter.
std::optional<std::string> bytes_of_letters(std::string_view name);

}  // namespace dflash::data
