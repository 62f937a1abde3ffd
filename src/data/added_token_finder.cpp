// SPDX-License-Identifier: Apache-2.0
#include "added_token_finder.hpp"

#include <dflash/core/check.hpp>

#include <algorithm>

namespace dflash::data {

AddedTokenFinder::AddedTokenFinder() : nodes_(1) {}

void AddedTokenFinder::add(std::string_view text, TokenId id) {
    DFLASH_CHECK(!text.empty(), "added token {} has no text", id);
    is_first_[static_cast<unsigned char>(text.front())] = true;
    std::size_t at = 0;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (const Node* next = follow(nodes_[at], byte)) {
            at = static_cast<std::size_t>(next - nodes_.data());
        } else {
            nodes_[at].next.emplace_back(byte, narrow<std::uint32_t>(nodes_.size()));
            at = nodes_.size();
            nodes_.emplace_back();
        }
    }
    if (nodes_[at].id < 0) {
        nodes_[at].id = id;
    }
}

const AddedTokenFinder::Node* AddedTokenFinder::follow(const Node& node, unsigned char byte) const {
    // Few tokens branch, so a node has one or two edges.
    const auto found = std::find_if(node.next.begin(), node.next.end(), [byte](const auto& edge) {
        return edge.first == byte;
    });
    return found == node.next.end() ? nullptr : &nodes_[found->second];
}

std::optional<FoundToken> AddedTokenFinder::find(std::string_view text, std::size_t from) const {
    if (empty()) {
        return std::nullopt;
    }
    for (std::size_t begin = from; begin < text.size(); ++begin) {
        if (!is_first_[static_cast<unsigned char>(text[begin])]) {
            continue;
        }
        // As far as the trie goes; a shorter token counts only if no longer one begins here too.
        std::optional<FoundToken> longest;
        const Node* node = nodes_.data();
        for (std::size_t at = begin; at < text.size(); ++at) {
            node = follow(*node, static_cast<unsigned char>(text[at]));
            if (node == nullptr) {
                break;
            }
            if (node->id >= 0) {
                longest = FoundToken{.begin = begin, .end = at + 1, .id = node->id};
            }
        }
        if (longest) {
            return longest;
        }
    }
    return std::nullopt;
}

}  // namespace dflash::data
