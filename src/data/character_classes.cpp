// SPDX-License-Identifier: Apache-2.0
#include "character_classes.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utf8proc.h>

namespace dflash::data {

namespace {

// Unchanged since Unicode 6.3.
constexpr std::array<CodePointRange, 10> kWhiteSpace{{{0x09, 0x0D},
                                                      {0x20, 0x20},
                                                      {0x85, 0x85},
                                                      {0xA0, 0xA0},
                                                      {0x1680, 0x1680},
                                                      {0x2000, 0x200A},
                                                      {0x2028, 0x2029},
                                                      {0x202F, 0x202F},
                                                      {0x205F, 0x205F},
                                                      {0x3000, 0x3000}}};

// Join_Control, and the symbols that are Alphabetic (circled and squared letters).
constexpr std::array<CodePointRange, 5> kWordBesideCategories{{{0x200C, 0x200D},
                                                               {0x24B6, 0x24E9},
                                                               {0x1F130, 0x1F149},
                                                               {0x1F150, 0x1F169},
                                                               {0x1F170, 0x1F189}}};

bool is_word_category(std::string_view category) {
    return category.starts_with('L') || category.starts_with('M') || category == "Nd" ||
           category == "Nl" || category == "Pc";
}

}  // namespace

std::span<const CodePointRange> white_space() {
    return kWhiteSpace;
}

bool is_number(char32_t c) {
    if (c < 0x80) {
        return c >= '0' && c <= '9';
    }
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
           category == UTF8PROC_CATEGORY_NO || contains(added_numbers(), c);
}

bool is_word_character(char32_t c) {
    if (is_word_category(utf8proc_category_string(static_cast<utf8proc_int32_t>(c))) ||
        contains(kWordBesideCategories, c)) {
        return true;
    }
    const auto additions = category_additions();
    return std::any_of(additions.begin(), additions.end(), [c](const CategoryAdditions& added) {
        return is_word_category(added.category) && contains(added.ranges, c);
    });
}

}  // namespace dflash::data
