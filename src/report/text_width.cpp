// SPDX-License-Identifier: Apache-2.0
#include "text_width.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace dflash::report {
namespace {

struct Range {
    char32_t first;
    char32_t last;
};

/// Blocks of nonspacing marks and format characters (general categories Mn, Me and Cf), Unicode 15.
constexpr std::array kZeroWidth = {
    Range{0x0300, 0x036F},  Range{0x0483, 0x0489}, Range{0x0591, 0x05BD}, Range{0x0610, 0x061A},
    Range{0x064B, 0x065F},  Range{0x06D6, 0x06DC}, Range{0x0900, 0x0902}, Range{0x093C, 0x093C},
    Range{0x0941, 0x0948},  Range{0x094D, 0x094D}, Range{0x0E31, 0x0E31}, Range{0x0E34, 0x0E3A},
    Range{0x0E47, 0x0E4E},  Range{0x1AB0, 0x1AFF}, Range{0x1DC0, 0x1DFF}, Range{0x200B, 0x200F},
    Range{0x202A, 0x202E},  Range{0x2060, 0x2064}, Range{0x20D0, 0x20F0}, Range{0x302A, 0x302D},
    Range{0x3099, 0x309A},  Range{0xFE00, 0xFE0F}, Range{0xFE20, 0xFE2F}, Range{0xFEFF, 0xFEFF},
    Range{0xE0100, 0xE01EF}};

/// Blocks of East_Asian_Width W and F (UAX #11), with emoji, Unicode 15.
constexpr std::array kDoubleWidth = {
    Range{0x1100, 0x115F},   Range{0x231A, 0x231B},   Range{0x23E9, 0x23EC},
    Range{0x2614, 0x2615},   Range{0x26A1, 0x26A1},   Range{0x2705, 0x2705},
    Range{0x274C, 0x274C},   Range{0x2753, 0x2755},   Range{0x2795, 0x2797},
    Range{0x2E80, 0x303E},   Range{0x3041, 0x3247},   Range{0x3250, 0x4DBF},
    Range{0x4E00, 0xA4CF},   Range{0xA960, 0xA97C},   Range{0xAC00, 0xD7A3},
    Range{0xF900, 0xFAFF},   Range{0xFE30, 0xFE6F},   Range{0xFF01, 0xFF60},
    Range{0xFFE0, 0xFFE6},   Range{0x1F300, 0x1F64F}, Range{0x1F680, 0x1F6FF},
    Range{0x1F900, 0x1F9FF}, Range{0x20000, 0x3FFFD}};

template <std::size_t N>
bool contains(const std::array<Range, N>& ranges, char32_t c) {
    const auto after =
        std::ranges::upper_bound(ranges, c, {}, [](const Range& range) { return range.first; });
    return after != ranges.begin() && c <= std::prev(after)->last;
}

int width_of(char32_t c) {
    return contains(kZeroWidth, c) ? 0 : contains(kDoubleWidth, c) ? 2 : 1;
}

/// What stands at the beginning of a text.
struct Piece {
    std::size_t length = 1;  // bytes
    int width = 1;
    bool is_text = true;  // a character: not a broken byte, a control character or a colour
};

/// Bytes of a colour sequence at the beginning of the text; 0 if there is none.
std::size_t colour_length(std::string_view text) {
    if (!text.starts_with("\033[")) {
        return 0;
    }
    const std::size_t end = text.find_first_not_of("0123456789;", 2);
    return end != std::string_view::npos && text[end] == 'm' ? end + 1 : 0;
}

Piece first_piece(std::string_view text) {
    const auto lead = static_cast<unsigned char>(text[0]);
    if (lead < 0x80) {
        const std::size_t colour = colour_length(text);
        if (colour > 0) {
            return {.length = colour, .width = 0, .is_text = false};
        }
        return {.length = 1, .width = 1, .is_text = lead >= 0x20 && lead != 0x7F};
    }
    constexpr Piece kBroken{.length = 1, .width = 1, .is_text = false};
    const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || text.size() < length) {
        return kBroken;
    }
    char32_t c = lead & (0xFFU >> (length + 1));
    for (const char next : text.substr(1, length - 1)) {
        const auto byte = static_cast<unsigned char>(next);
        if ((byte & 0xC0U) != 0x80U) {
            return kBroken;
        }
        c = (c << 6U) | (byte & 0x3FU);
    }
    constexpr std::array<char32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
    const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
    const bool c1_control = c < 0xA0;
    if (c < kSmallest[length] || c > 0x10FFFF || surrogate) {
        return kBroken;
    }
    return {.length = length, .width = width_of(c), .is_text = !c1_control};
}

}  // namespace

int display_width(std::string_view text) {
    int width = 0;
    while (!text.empty()) {
        const Piece piece = first_piece(text);
        width += piece.width;
        text.remove_prefix(piece.length);
    }
    return width;
}

std::string cut_to_width(std::string_view text, int columns) {
    std::string kept;
    bool full = false;
    while (!text.empty()) {
        const Piece piece = first_piece(text);
        // Behind the cut only colours go on: what was set is set back.
        full = full || piece.width > columns;
        if (!full || colour_length(text) > 0) {
            kept += text.substr(0, piece.length);
            columns -= piece.width;
        }
        text.remove_prefix(piece.length);
    }
    return kept;
}

std::string printable(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        // A colour that is not ours is a control character like any other.
        const Piece piece = text[0] == '\033' ? Piece{.is_text = false} : first_piece(text);
        out += piece.is_text ? text.substr(0, piece.length) : "?";
        text.remove_prefix(piece.length);
    }
    return out;
}

}  // namespace dflash::report
