// SPDX-License-Identifier: Apache-2.0
// Deterministic damage to a text, for tests of parsers.
#pragma once

#include <dflash/core/random.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace dflash::test {

/// A copy of `text` with one to four changes: bytes replaced, removed, doubled or inserted (with a
/// preference for bytes that mean something in `alphabet`), or cut at the end.
inline std::string mutate(std::string_view text, std::string_view alphabet, RandomStream& random) {
    std::string out(text);
    const std::uint64_t changes = 1 + random.below(4);
    for (std::uint64_t change = 0; change < changes && !out.empty(); ++change) {
        const std::size_t at = random.below(out.size());
        const char letter = random.below(8) == 0 ? static_cast<char>(random.below(256))
                                                 : alphabet[random.below(alphabet.size())];
        switch (random.below(6)) {
            case 0:
            case 1:
                out[at] = letter;
                break;
            case 2:
                out.insert(at, 1, letter);
                break;
            case 3:
                out.erase(at, 1 + random.below(3));
                break;
            case 4: {
                const std::string piece = out.substr(at, 1 + random.below(12));
                out.insert(random.below(out.size()), piece);
                break;
            }
            default:
                if (random.below(4) == 0) {
                    out.resize(at);
                }
        }
    }
    return out;
}

}  // namespace dflash::test
