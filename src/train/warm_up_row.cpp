// SPDX-License-Identifier: Apache-2.0
#include "warm_up_row.hpp"

#include <dflash/data/anchors.hpp>

#include <algorithm>
#include <vector>

namespace dflash::train {

data::PackedRow make_warm_up_row(const data::BlockRule& rule,
                                 std::int64_t num_tokens,
                                 std::int64_t num_blocks,
                                 std::int64_t vocab_size) {
    // D documents of one length have room for this many blocks: the last token of a document has no
    // successor to predict. The fewest documents with the most blocks.
    const auto room = [&](std::int64_t documents) {
        return std::min({num_blocks, documents * rule.max_anchors, num_tokens - documents});
    };
    std::int64_t documents = 1;
    while (documents < num_tokens / 2 && room(documents + 1) > room(documents)) {
        ++documents;
    }
    data::PackedRow row;
    for (std::int64_t i = 0; i < documents; ++i) {
        const std::int64_t length = num_tokens * (i + 1) / documents - num_tokens * i / documents;
        const std::int64_t blocks = std::min({num_blocks - row.blocks.num_blocks(),
                                              rule.max_anchors,
                                              std::max<std::int64_t>(length - 1, 0)});
        std::vector<TokenId> tokens;
        for (std::int64_t n = 0; n < length; ++n) {
            constexpr std::int64_t kPrime = 7919;
            tokens.push_back(static_cast<TokenId>((i + n) * kPrime % vocab_size));
        }
        const std::vector<std::uint8_t> trainable(tokens.size(), 1);
        std::vector<std::int32_t> anchors;
        for (std::int64_t n = 0; n < blocks; ++n) {
            anchors.push_back(static_cast<std::int32_t>(n));  // as far from the end as there are
        }
        data::append_document(row, /*id=*/i, tokens);
        data::append_blocks(row, trainable, anchors, rule);
    }
    return row;
}

}  // namespace dflash::train
