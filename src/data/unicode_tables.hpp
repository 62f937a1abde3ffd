// SPDX-License-Identifier: Apache-2.0
// Where the character tables inside the reference tokenizers (tokenizers 0.23.3: Unicode 16
// classes, Unicode 17 numbers, Unicode 9 normalisation) differ from those of PCRE2 and utf8proc.
// Additions are harmless where a newer library knows them already.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

namespace dflash::data {

struct CodePointRange {
    char32_t first = 0;
    char32_t last = 0;
};

/// Characters that entered a general category ("Lu") after Unicode 14.
struct CategoryAdditions {
    std::string_view category;
    std::span<const CodePointRange> ranges;
};

std::span<const CategoryAdditions> category_additions();

/// Numbers (Nd, Nl, No) after Unicode 14, as the Digits pre-tokenizer knows them.
std::span<const CodePointRange> added_numbers();

/// Characters that NFC leaves as they are, and across which it neither reorders nor composes.
std::span<const CodePointRange> nfc_inert();

/// Whether rising, disjoint ranges hold a character.
inline bool contains(std::span<const CodePointRange> ranges, char32_t code_point) {
    const auto next = std::upper_bound(
        ranges.begin(), ranges.end(), code_point, [](char32_t value, const CodePointRange& r) {
            return value < r.first;
        });
    return next != ranges.begin() && code_point <= std::prev(next)->last;
}

}  // namespace dflash::data
