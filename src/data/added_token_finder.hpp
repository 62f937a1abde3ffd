// SPDX-License-Identifier: Apache-2.0
// Finds added tokens in text: leftmost first, then longest, without overlap.
#pragma once

#include <dflash/core/types.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace dflash::data {

struct FoundToken {
    std::size_t begin = 0;
    std::size_t end = 0;
    TokenId id = -1;
};

/// A trie over the tokens' bytes. Searching takes at most the longest token's length per byte.
class AddedTokenFinder {
  public:
    AddedTokenFinder();

    /// The text is not empty. Of two tokens with the same text the first one stays.
    void add(std::string_view text, TokenId id);

    bool empty() const { return nodes_.size() == 1; }

    /// The next token that begins at `from` or later.
    std::optional<FoundToken> find(std::string_view text, std::size_t from) const;

  private:
    struct Node {
        std::vector<std::pair<unsigned char, std::uint32_t>> next;
        TokenId id = -1;
    };

    const Node* follow(const Node& node, unsigned char byte) const;

    std::vector<Node> nodes_;  // [0] is the root
    std::array<bool, 256> is_first_{};
};

}  // namespace dflash::data
