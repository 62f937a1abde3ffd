// SPDX-License-Identifier: Apache-2.0
#include <dflash/eval/bigram.hpp>

#include <doctest/doctest.h>

namespace dflash::eval {

TEST_SUITE("eval.bigram") {
    data::PackedRow row_with_anchor(TokenId token) {
        data::PackedRow row;
        row.tokens = {99, token, 0, 0, 0};
        row.blocks.block_size = 4;
        row.blocks.anchors = {1};
        row.blocks.head_rows = {1, 2, 3};
        row.blocks.labels = {0, 0, 0};
        return row;
    }

    TEST_CASE("slot k gets the successor k times removed") {
        BigramTable table;
        table.add(std::vector<TokenId>{1, 2, 3, 4}, std::vector<std::uint8_t>{0, 1, 1, 1});
        table.finish();
        CHECK(table.predict(row_with_anchor(1)) == std::vector<TokenId>{2, 3, 4});
        CHECK(table.predict(row_with_anchor(3)) == std::vector<TokenId>{4, -1, -1});
        CHECK(table.predict(row_with_anchor(7)) == std::vector<TokenId>{-1, -1, -1});
    }

    TEST_CASE("the most frequent successor wins, the smaller id breaks ties") {
        BigramTable table;
        table.add(std::vector<TokenId>{1, 5, 1, 4, 1, 5, 2, 9, 2, 8},
                  std::vector<std::uint8_t>(10, 1));
        table.finish();
        CHECK(table.predict(row_with_anchor(1))[0] == 5);
        CHECK(table.predict(row_with_anchor(2))[0] == 8);
    }

    TEST_CASE("tokens that are not trained are no successors") {
        BigramTable table;
        table.add(std::vector<TokenId>{1, 2, 1, 3}, std::vector<std::uint8_t>{1, 0, 1, 1});
        table.finish();
        CHECK(table.predict(row_with_anchor(1))[0] == 3);
    }
}

}  // namespace dflash::eval
