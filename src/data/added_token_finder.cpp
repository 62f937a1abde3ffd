// SPDX-License-Identifier: Apache-2.0
#include "added_token_finder.hpp"

#include "character_classes.hpp"
#include "utf8.hpp"

#include <dflash/core/check.hpp>

#include <algorithm>

namespace dflash::data {

namespace {

bool is_word_before(std::string_view text, std::size_t at) {
    return at > 0 && is_word_character(step_utf8(text, character_begin(text, at - 1)).code_point);
}

bool is_word_at(std::string_view text, std::size_t at) {
    return at < text.size() && is_word_character(step_utf8(text, at).code_point);
}

std::size_t space_begin(std::string_view text, std::size_t end, std::size_t least) {
    while (end > least) {
        const std::size_t begin = character_begin(text, end - 1);
        if (begin < least || !is_white_space(step_utf8(text, begin).code_point)) {
            break;
        }
        end = begin;
    }
    return end;
}

std::size_t space_end(std::string_view text, std::size_t begin) {
    while (begin < text.size()) {
        const Utf8Step step = step_utf8(text, begin);
        if (!is_white_space(step.code_point)) {
            break;
        }
        begin += step.length;
    }
    return begin;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder() : nodes_(1) {}

void AddedTokenFinder::add(std::string_view text, TokenId id, TokenEdges edges) {
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
        nodes_[at].edges = edges;
    }
}

const AddedTokenFinder::Node* AddedTokenFinder::follow(const Node& node, unsigned char byte) const {
    // Few tokens branch, so a node has one or two edges.
    const auto found = std::find_if(node.next.begin(), node.next.end(), [byte](const auto& edge) {
        return edge.first == byte;
    });
    return found == node.next.end() ? nullptr : &nodes_[found->second];
}

// As far as the trie goes; a shorter token counts only if no longer one begins here too.
AddedTokenFinder::Match AddedTokenFinder::longest_at(std::string_view text,
                                                     std::size_t begin) const {
    Match longest;
    const Node* node = nodes_.data();
    for (std::size_t at = begin; at < text.size(); ++at) {
        node = follow(*node, static_cast<unsigned char>(text[at]));
        if (node == nullptr) {
            break;
        }
        if (node->id >= 0) {
            longest = {.end = at + 1, .node = node};
        }
    }
    return longest;
}

std::optional<FoundToken> AddedTokenFinder::find(std::string_view text,
                                                 std::size_t from,
                                                 std::size_t taken) const {
    if (empty()) {
        return std::nullopt;
    }
    for (std::size_t begin = from; begin < text.size(); ++begin) {
        if (!is_first_[static_cast<unsigned char>(text[begin])]) {
            continue;
        }
        const Match match = longest_at(text, begin);
        if (match.node == nullptr) {
            continue;
        }
        const TokenEdges& edges = match.node->edges;
        if (edges.single_word && (is_word_before(text, begin) || is_word_at(text, match.end))) {
            // Its text is passed over, with whatever shorter token stands in it.
            begin = match.end - 1;
            continue;
        }
        return FoundToken{.begin = edges.lstrip ? space_begin(text, begin, taken) : begin,
                          .end = edges.rstrip ? space_end(text, match.end) : match.end,
                          .id = match.node->id,
                          .text_end = match.end};
    }
    return std::nullopt;
}

}  // namespace dflash::data
