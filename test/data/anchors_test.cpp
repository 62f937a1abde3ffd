// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/random.hpp>
#include <dflash/data/anchors.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <doctest/doctest.h>
#include <map>
#include <set>
#include <vector>

namespace dflash::data {
namespace {

using Mask = std::vector<std::uint8_t>;

/// A mask of `length` tokens in which runs of trained and untrained tokens alternate.
Mask random_mask(RandomStream& random, std::size_t length) {
    Mask mask;
    auto value = static_cast<std::uint8_t>(random.below(2));
    while (mask.size() < length) {
        const std::uint64_t run = 1 + random.below(6);
        for (std::uint64_t i = 0; i < run && mask.size() < length; ++i) {
            mask.push_back(value);
        }
        value ^= 1U;
    }
    return mask;
}

std::vector<TokenId> counting_tokens(std::size_t length, TokenId first) {
    std::vector<TokenId> tokens(length);
    for (std::size_t i = 0; i < length; ++i) {
        tokens[i] = first + static_cast<TokenId>(i);
    }
    return tokens;
}

TEST_SUITE("data.anchors") {
    TEST_CASE("default_gamma: published values, and the nearest for other block sizes") {
        const std::map<std::int64_t, double> expected{
            {1, 4}, {7, 4}, {8, 4}, {9, 4}, {10, 5}, {12, 5}, {13, 5}, {14, 7}, {16, 7}, {32, 7}};
        for (const auto& entry : expected) {
            CAPTURE(entry.first);
            CHECK(default_gamma(entry.first) == entry.second);
        }
    }

    TEST_CASE("slot_weight: decays from 1 at slot 1, is 0 at the anchor, and 1 without a gamma") {
        const BlockRule rule{.block_size = 16, .loss_decay_gamma = 7};
        CHECK(slot_weight(rule, 0) == 0.0F);
        CHECK(slot_weight(rule, 1) == 1.0F);
        CHECK(slot_weight(rule, 8) == static_cast<float>(std::exp(-1.0)));
        CHECK(slot_weight(rule, 15) == doctest::Approx(0.1353353).epsilon(1e-6));
        double sum = 0;
        for (std::int32_t k = 0; k < 16; ++k) {
            sum += static_cast<double>(slot_weight(rule, k));
        }
        CHECK(sum == doctest::Approx(6.63).epsilon(1e-3));

        const BlockRule uniform{.block_size = 4, .loss_decay_gamma = 0};
        CHECK(slot_weight(uniform, 0) == 0.0F);
        CHECK(slot_weight(uniform, 1) == 1.0F);
        CHECK(slot_weight(uniform, 3) == 1.0F);
        CHECK_THROWS_AS(slot_weight(uniform, 4), Error);
    }

    TEST_CASE("anchor_candidates: a token and its successor are trained, the last one never is") {
        struct Case {
            Mask mask;
            std::vector<std::int32_t> expected;
        };

        const std::vector<Case> cases{{{}, {}},
                                      {{1}, {}},
                                      {{1, 1}, {0}},
                                      {{0, 1}, {}},
                                      {{1, 0, 1, 0}, {}},
                                      {{1, 1, 1, 0, 1, 1}, {0, 1, 4}},
                                      {{0, 0, 1, 1, 1}, {2, 3}}};
        for (const Case& c : cases) {
            CAPTURE(c.mask.size());
            CHECK(anchor_candidates(c.mask) == c.expected);
        }
    }

    TEST_CASE("draw_anchors: takes every candidate of a short document") {
        const Mask mask{0, 1, 1, 1, 0, 1, 1};
        const BlockRule rule{.max_anchors = 3};
        CHECK(draw_anchors(mask, rule, 1, 0, 5) == std::vector<std::int32_t>{1, 2, 5});
    }

    TEST_CASE("draw_anchors: draws rising candidates without repeats, as many as the rule allows") {
        RandomStream random(3, Purpose::Test, 0, 0);
        for (SampleId id = 0; id < 50; ++id) {
            const Mask mask = random_mask(random, 300);
            const BlockRule rule{.max_anchors = 20};
            const auto anchors = draw_anchors(mask, rule, 9, 2, id);
            const auto candidates = anchor_candidates(mask);
            CAPTURE(id);
            REQUIRE(anchors.size() == std::min<std::size_t>(20, candidates.size()));
            CHECK(std::ranges::adjacent_find(anchors, std::ranges::greater_equal{}) ==
                  anchors.end());
            CHECK(std::ranges::includes(candidates, anchors));
        }
    }

    TEST_CASE("draw_anchors: depends on seed, epoch and sample, and on nothing else") {
        const Mask mask(500, 1);
        const BlockRule rule{.max_anchors = 8};
        const auto first = draw_anchors(mask, rule, 1, 0, 0);
        CHECK(draw_anchors(mask, rule, 1, 0, 0) == first);
        CHECK(draw_anchors(mask, rule, 2, 0, 0) != first);
        CHECK(draw_anchors(mask, rule, 1, 1, 0) != first);
        CHECK(draw_anchors(mask, rule, 1, 0, 1) != first);
    }

    TEST_CASE("draw_anchors: held-out samples keep their anchors over the epochs") {
        const Mask mask(500, 1);
        const BlockRule rule{.max_anchors = 8};
        const auto first = draw_anchors(mask, rule, 1, 0, 0, /*held_out=*/true);
        CHECK(draw_anchors(mask, rule, 1, 7, 0, /*held_out=*/true) == first);
        CHECK(draw_anchors(mask, rule, 1, 0, 0) != first);
    }

    TEST_CASE("draw_anchors: every candidate is equally likely") {
        const Mask mask(21, 1);  // 20 candidates
        const BlockRule rule{.max_anchors = 5};
        std::vector<int> hits(20, 0);
        constexpr int kDraws = 4000;
        for (SampleId id = 0; id < kDraws; ++id) {
            for (const std::int32_t p : draw_anchors(mask, rule, 4, 0, id)) {
                ++hits[static_cast<std::size_t>(p)];
            }
        }
        // Binomial with mean 1000 and a standard deviation of 27.4; five of them either way.
        for (const int count : hits) {
            CHECK(count > 863);
            CHECK(count < 1137);
        }
    }

    TEST_CASE("append_blocks: equals the definition, slot by slot, for random documents") {
        RandomStream random(11, Purpose::Test, 0, 0);
        for (int round = 0; round < 40; ++round) {
            CAPTURE(round);
            const BlockRule rule{.block_size = static_cast<std::int32_t>(2 + random.below(15)),
                                 .loss_decay_gamma = round % 4 == 0 ? 0.0 : 3.5,
                                 .max_anchors = 6};
            PackedRow row;
            std::vector<Mask> masks;
            std::vector<std::vector<std::int32_t>> anchors;
            const std::uint64_t num_documents = 1 + random.below(4);
            for (std::uint64_t d = 0; d < num_documents; ++d) {
                masks.push_back(random_mask(random, 2 + random.below(40)));
                anchors.push_back(
                    draw_anchors(masks.back(), rule, 5, round, static_cast<SampleId>(d)));
                append_document(
                    row,
                    static_cast<SampleId>(d),
                    counting_tokens(masks.back().size(), static_cast<TokenId>(100 * d)));
                append_blocks(row, masks.back(), anchors.back(), rule);
            }

            REQUIRE(row.documents.size() == num_documents);
            std::size_t n = 0;
            std::size_t r = 0;
            double weight_sum = 0;
            for (std::size_t d = 0; d < num_documents; ++d) {
                const Document& document = row.documents[d];
                CHECK(document.length == std::ssize(masks[d]));
                CHECK(document.first_block == static_cast<std::int32_t>(n));
                CHECK(document.num_blocks == std::ssize(anchors[d]));
                for (const std::int32_t p : anchors[d]) {
                    REQUIRE(n < row.blocks.anchors.size());
                    CHECK(row.blocks.anchors[n] == document.begin + p);
                    CHECK(row.blocks.document[n] == static_cast<std::int32_t>(d));
                    CHECK(row.blocks.context_begin[n] == document.begin);
                    for (std::int32_t k = 0; k < rule.block_size; ++k) {
                        const std::int32_t target = p + k;
                        const bool counts = k >= 1 && target < document.length &&
                                            masks[d][static_cast<std::size_t>(target)] == 1;
                        if (!counts) {
                            continue;
                        }
                        REQUIRE(r < row.blocks.head_rows.size());
                        CHECK(row.blocks.head_rows[r] ==
                              static_cast<std::int32_t>(n) * rule.block_size + k);
                        CHECK(row.blocks.labels[r] == static_cast<TokenId>(100 * d) + p + k);
                        CHECK(row.blocks.weights[r] == slot_weight(rule, k));
                        weight_sum += static_cast<double>(slot_weight(rule, k));
                        ++r;
                    }
                    ++n;
                }
            }
            CHECK(n == row.blocks.anchors.size());
            CHECK(r == row.blocks.head_rows.size());
            CHECK(r == row.blocks.labels.size());
            CHECK(r == row.blocks.weights.size());
            CHECK(row.blocks.weight_sum == weight_sum);
            CHECK(row.positions.size() == row.tokens.size());
        }
    }

    TEST_CASE("append_blocks: positions restart in every document") {
        PackedRow row;
        append_document(row, 4, counting_tokens(3, 10));
        append_document(row, 2, counting_tokens(2, 20));
        CHECK(row.positions == std::vector<std::int32_t>{0, 1, 2, 0, 1});
        CHECK(row.tokens == std::vector<TokenId>{10, 11, 12, 20, 21});
        CHECK(row.documents[1].id == 2);
        CHECK(row.documents[1].begin == 3);
    }

    TEST_CASE("append_blocks: labels end with the document and resume after a gap") {
        const BlockRule rule{.block_size = 4, .loss_decay_gamma = 0};
        PackedRow row;
        append_document(row, 0, counting_tokens(6, 0));
        append_blocks(row, Mask{1, 1, 0, 1, 1, 1}, std::vector<std::int32_t>{0, 4}, rule);
        append_document(row, 1, counting_tokens(3, 50));
        append_blocks(row, Mask{1, 1, 1}, std::vector<std::int32_t>{}, rule);
        // Block 0: slots 1 and 3 (slot 2 is not trained); block 1: slot 1 only.
        CHECK(row.blocks.head_rows == std::vector<std::int32_t>{1, 3, 5});
        CHECK(row.blocks.labels == std::vector<TokenId>{1, 3, 5});
        CHECK(row.blocks.weight_sum == 3.0);
    }

    TEST_CASE("append_blocks: leaves out slots whose weight underflows") {
        const BlockRule rule{.block_size = 4, .loss_decay_gamma = 0.005};
        PackedRow row;
        append_document(row, 0, counting_tokens(6, 0));
        append_blocks(row, Mask(6, 1), std::vector<std::int32_t>{0}, rule);
        // exp(-200) is 0 in single precision.
        CHECK(row.blocks.head_rows == std::vector<std::int32_t>{1});
    }

    TEST_CASE("append_blocks: refuses what contradicts the row") {
        const BlockRule rule{.block_size = 4};
        PackedRow row;
        const Mask mask(5, 1);
        using Anchors = std::vector<std::int32_t>;
        CHECK_THROWS_AS(append_blocks(row, mask, Anchors{0}, rule), Error);
        append_document(row, 0, counting_tokens(5, 0));
        CHECK_THROWS_AS(append_blocks(row, Mask(4, 1), Anchors{0}, rule), Error);
        CHECK_THROWS_AS(append_blocks(row, mask, Anchors{5}, rule), Error);
        CHECK_THROWS_AS(append_blocks(row, mask, Anchors{-1}, rule), Error);
    }
}

}  // namespace
}  // namespace dflash::data
