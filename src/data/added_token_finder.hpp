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

/// How a token asks for what stands beside it.
struct TokenEdges {
    bool single_word = false;  ///< not where a word character stands beside it
    bool lstrip = false;       ///< takes the white space before it ...
    bool rstrip = false;       ///< ... and behind it
};

struct FoundToken {
    std::size_t begin = 0;
    std::size_t end = 0;
    TokenId id = -1;
    std::size_t text_end = 0;  ///< of its own text, where the search goes on
};

/// A trie over the tokens' bytes. Searching takes at most the longest token's length per byte.
class AddedTokenFinder {
  public:
    AddedTokenFinder();

    /// The text is not empty. Of two tokens with the same text the first one stays.
    void add(std::string_view text, TokenId id, TokenEdges edges = {});

    bool empty() const { return nodes_.size() == 1; }

    /// The next token whose own text begins at `from` or later. What it takes of the white space
    /// before it begins at `taken` or later: where the last token ended with what that took. The
    /// text is well-formed.
    std::optional<FoundToken> find(std::string_view text,
                                   std::size_t from,
                                   std::size_t taken) const;

  private:
    struct Node {
        std::vector<std::pair<unsigned char, std::uint32_t>> next;
        TokenId id = -1;
        TokenEdges edges;
    };

    struct Match {
        std::size_t end = 0;
        const Node* node = nullptr;  // none: no token begins there
    };

    const Node* follow(const Node& node, unsigned char byte) const;
    Match longest_at(std::string_view text, std::size_t begin) const;

    std::vector<Node> nodes_;  // [0] is the root
    std::array<bool, 256> is_first_{};
};

}  // namespace dflash::data
