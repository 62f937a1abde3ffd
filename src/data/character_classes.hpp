// SPDX-License-Identifier: Apache-2.0
// Classes of characters as the reference tokenizers (tokenizers 0.23.3) see them.
#pragma once

#include "unicode_tables.hpp"

#include <span>

namespace dflash::data {

/// Unicode's White_Space property.
std::span<const CodePointRange> white_space();

inline bool is_white_space(char32_t c) {
    return contains(white_space(), c);
}

/// Nd, Nl, No: Rust's char::is_numeric, with which the Digits step decides.
bool is_number(char32_t c);

/// \w of Rust's regex crate, with which the edges of added tokens are judged: Alphabetic, marks,
/// decimal numbers, connectors and joiners (UTS 18, annex C).
bool is_word_character(char32_t c);

}  // namespace dflash::data
