// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <set>
#include <warm_up_row.hpp>

namespace dflash::train {

TEST_SUITE("train.warm_up_row") {
    TEST_CASE("the row is as large as asked for, and no document has too many blocks") {
        const data::BlockRule rule{.block_size = 8, .max_anchors = 50};
        for (const auto& [tokens, blocks] :
             {std::pair<std::int64_t, std::int64_t>{1000, 120}, {777, 50}, {64, 1}, {500, 400}}) {
            CAPTURE(tokens);
            CAPTURE(blocks);
            const data::PackedRow row = make_warm_up_row(rule, tokens, blocks);
            CHECK(row.num_tokens() == tokens);
            CHECK(row.blocks.num_blocks() == blocks);
            CHECK(!row.blocks.head_rows.empty());
            for (const data::Document& document : row.documents) {
                CHECK(document.num_blocks <= 50);
            }
        }
    }

    TEST_CASE("tokens are spread over the vocabulary, and inside it") {
        const data::PackedRow row =
            make_warm_up_row({.block_size = 8, .max_anchors = 50}, 1000, 120, /*vocab_size=*/300);
        const std::set<TokenId> different(row.tokens.begin(), row.tokens.end());
        CHECK(*different.begin() >= 0);
        CHECK(*different.rbegin() < 300);
        CHECK(different.size() > 200);
    }

    TEST_CASE("blocks have all of their slots where documents are long enough") {
        const data::PackedRow row =
            make_warm_up_row({.block_size = 8, .max_anchors = 50}, 500, 100);
        CHECK(row.blocks.head_rows.size() == 100 * 7);
    }

    TEST_CASE("where there is no place for all blocks there are as many as fit") {
        const data::BlockRule rule{.block_size = 4, .max_anchors = 512};
        const data::PackedRow row = make_warm_up_row(rule, 10, 40);
        CHECK(row.num_tokens() == 10);
        CHECK(row.blocks.num_blocks() == 9);
        // One document has room for 255 blocks, two for 254.
        CHECK(make_warm_up_row({.block_size = 16, .max_anchors = 256}, 256, 512)
                  .blocks.num_blocks() == 255);
    }
}

}  // namespace dflash::train
