// SPDX-License-Identifier: Apache-2.0
#include <dflash/eval/held_out.hpp>

#include <doctest/doctest.h>

namespace dflash::eval {

TEST_SUITE("eval.held_out") {
    // Two blocks of four slots: all labels, and one whose slot 2 is no label.
    data::BlockPlan two_blocks() {
        data::BlockPlan plan;
        plan.block_size = 4;
        plan.anchors = {3, 10};
        plan.head_rows = {1, 2, 3, 5, 7};
        plan.labels = {11, 12, 13, 21, 23};
        return plan;
    }

    TEST_CASE("accuracy counts each slot by itself") {
        HeldOutScore score(4);
        score.add(two_blocks(), std::vector<TokenId>{11, 0, 13, 21, 0});
        const auto by_slot = score.accuracy_by_slot();
        REQUIRE(by_slot.size() == 3);
        CHECK(by_slot[0] == 1.0);
        CHECK(by_slot[1] == 0.0);
        CHECK(by_slot[2] == 0.5);
        CHECK(score.accuracy() == doctest::Approx(3.0 / 5));
        CHECK(score.num_labels() == 5);
    }

    TEST_CASE("acceptance counts leading right slots and the bonus token") {
        HeldOutScore score(4);
        // Block 0 is right in slots 1 and 2 (2 leading); block 1 in slot 1, and slot 2 is no label,
        // so slot 3 does not count.
        score.add(two_blocks(), std::vector<TokenId>{11, 12, 0, 21, 23});
        CHECK(score.acceptance_length() == doctest::Approx(1 + 3.0 / 2));
    }

    TEST_CASE("a wrong first slot accepts only the bonus token") {
        HeldOutScore score(4);
        score.add(two_blocks(), std::vector<TokenId>{0, 12, 13, 0, 23});
        CHECK(score.acceptance_length() == 1.0);
    }

    TEST_CASE("an empty score gives zeros, not NaN") {
        const HeldOutScore score(4);
        CHECK(score.accuracy() == 0);
        CHECK(score.acceptance_length() == 0);
        CHECK(score.accuracy_by_slot() == std::vector<double>{0, 0, 0});
    }
}

}  // namespace dflash::eval
