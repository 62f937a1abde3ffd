// SPDX-License-Identifier: Apache-2.0
#include "byte_letters.hpp"

#include "utf8.hpp"

#include <array>
#include <cstdint>

namespace dflash::data {
namespace {

constexpr char32_t kFirstExtra = 0x100;
constexpr std::size_t kNumLetters = kFirstExtra + 68;

// Both directions; the largest letter is below U+0144.
struct Alphabet {
    std::array<char32_t, 256> letter{};
    std::array<std::int16_t, kNumLetters> byte{};  // -1 where no byte has that letter
};

constexpr Alphabet make_alphabet() {
    Alphabet alphabet;
    alphabet.byte.fill(-1);
    char32_t extra = kFirstExtra;
    for (char32_t b = 0; b < 256; ++b) {
        const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        const char32_t letter = itself ? b : extra++;
        alphabet.letter[b] = letter;
        alphabet.byte[letter] = static_cast<std::int16_t>(b);
    }
    return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::string byte_letter(unsigned char byte) {
    std::string letter;
    append_utf8(letter, kAlphabet.letter[byte]);
    return letter;
}

std::optional<std::string> bytes_of_letters(std::string_view name) {
    std::string bytes;
    bytes.reserve(name.size());
    for (std::size_t at = 0; at < name.size();) {
        const Utf8Step step = step_utf8(name, at);
        if (!step.valid || step.code_point >= kNumLetters || kAlphabet.byte[step.code_point] < 0) {
            return std::nullopt;
        }
        bytes += static_cast<char>(static_cast<unsigned char>(kAlphabet.byte[step.code_point]));
        at += step.length;
    }
    return bytes;
}

}  // namespace dflash::data
