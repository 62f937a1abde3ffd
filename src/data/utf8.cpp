// SPDX-License-Identifier: Apache-2.0
#include "utf8.hpp"

#include <cstdint>
#include <cstring>

namespace dflash::data {
// Most texts are little else, so eight bytes at a time.
std::size_t find_ascii_end(std::string_view text, std::size_t at) {
    constexpr std::uint64_t kHighBits = 0x8080808080808080ULL;
    while (at + sizeof(std::uint64_t) <= text.size()) {
        std::uint64_t word = 0;
        std::memcpy(&word, text.data() + at, sizeof(word));
        if ((word & kHighBits) != 0) {
            break;
        }
        at += sizeof(word);
    }
    while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) {
        ++at;
    }
    return at;
}

Utf8Step step_utf8(std::string_view text, std::size_t at) {
    const auto lead = static_cast<unsigned char>(text[at]);
    if (lead < 0x80) {
        return {.code_point = lead, .length = 1, .valid = true};
    }
    // Table 3-7 of the Unicode standard: the second byte's range rules out long forms, surrogates
    // and values above U+10FFFF.
    std::size_t length = 0;
    unsigned second_low = 0x80;
    unsigned second_high = 0xBF;
    char32_t value = 0;
    if (lead >= 0xC2 && lead <= 0xDF) {
        length = 2;
        value = lead & 0x1FU;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        length = 3;
        value = lead & 0x0FU;
        second_low = lead == 0xE0 ? 0xA0 : 0x80;
        second_high = lead == 0xED ? 0x9F : 0xBF;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        length = 4;
        value = lead & 0x07U;
        second_low = lead == 0xF0 ? 0x90 : 0x80;
        second_high = lead == 0xF4 ? 0x8F : 0xBF;
    } else {
        return {.code_point = 0, .length = 1, .valid = false};
    }
    for (std::size_t i = 1; i < length; ++i) {
        const unsigned low = i == 1 ? second_low : 0x80;
        const unsigned high = i == 1 ? second_high : 0xBF;
        const unsigned byte = at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U;
        if (byte < low || byte > high) {
            return {.code_point = 0, .length = i, .valid = false};
        }
        value = (value << 6U) | (byte & 0x3FU);
    }
    return {.code_point = value, .length = length, .valid = true};
}

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
    std::size_t at = find_ascii_end(text, 0);
    while (at < text.size()) {
        const Utf8Step step = step_utf8(text, at);
        if (!step.valid) {
            return at;
        }
        at = find_ascii_end(text, at + step.length);
    }
    return std::nullopt;
}

std::string repair_utf8(std::string text) {
    // Nearly always nothing is broken, and the text goes back as it came.
    const std::optional<std::size_t> fault = find_invalid_utf8(text);
    if (!fault) {
        return text;
    }
    std::string repaired = text.substr(0, *fault);
    for (std::size_t at = *fault; at < text.size();) {
        const Utf8Step step = step_utf8(text, at);
        if (step.valid) {
            repaired.append(text, at, step.length);
        } else {
            append_utf8(repaired, 0xFFFD);
        }
        at += step.length;
    }
    return repaired;
}

void append_utf8(std::string& text, char32_t code_point) {
    const auto put = [&text](char32_t byte) {
        text += static_cast<char>(static_cast<unsigned char>(byte));
    };
    if (code_point < 0x80) {
        put(code_point);
    } else if (code_point < 0x800) {
        put(0xC0U | (code_point >> 6U));
        put(0x80U | (code_point & 0x3FU));
    } else if (code_point < 0x10000) {
        put(0xE0U | (code_point >> 12U));
        put(0x80U | ((code_point >> 6U) & 0x3FU));
        put(0x80U | (code_point & 0x3FU));
    } else {
        put(0xF0U | (code_point >> 18U));
        put(0x80U | ((code_point >> 12U) & 0x3FU));
        put(0x80U | ((code_point >> 6U) & 0x3FU));
        put(0x80U | (code_point & 0x3FU));
    }
}

}  // namespace dflash::data
