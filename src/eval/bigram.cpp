// SPDX-License-Identifier: Apache-2.0
#include <dflash/eval/bigram.hpp>

namespace dflash::eval {
namespace {

std::uint64_t pair_key(TokenId first, TokenId second) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(first)) << 32) |
           static_cast<std::uint32_t>(second);
}

}  // namespace

void BigramTable::add(std::span<const TokenId> tokens, std::span<const std::uint8_t> trainable) {
    for (std::size_t t = 1; t < tokens.size(); ++t) {
        if (trainable[t] != 0) {
            ++counts_[pair_key(tokens[t - 1], tokens[t])];
        }
    }
}

void BigramTable::finish() {
    std::unordered_map<TokenId, std::int64_t> best;
    for (const auto& [key, count] : counts_) {
        const auto first = static_cast<TokenId>(key >> 32);
        const auto second = static_cast<TokenId>(key & 0xffffffffU);
        std::int64_t& best_count = best[first];
        if (count > best_count || (count == best_count && second < successor_[first])) {
            best_count = count;
            successor_[first] = second;
        }
    }
    counts_.clear();
}

std::vector<TokenId> BigramTable::predict(const data::PackedRow& row) const {
    std::vector<TokenId> predicted;
    predicted.reserve(row.blocks.head_rows.size());
    for (const std::int32_t head_row : row.blocks.head_rows) {
        const std::int32_t block = head_row / row.blocks.block_size;
        TokenId token = row.tokens[static_cast<std::size_t>(
            row.blocks.anchors[static_cast<std::size_t>(block)])];
        for (std::int32_t k = 0; k < head_row % row.blocks.block_size && token >= 0; ++k) {
            const auto found = successor_.find(token);
            token = found == successor_.end() ? -1 : found->second;
        }
        predicted.push_back(token);
    }
    return predicted;
}

}  // namespace dflash::eval
