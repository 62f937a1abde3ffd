// SPDX-License-Identifier: Apache-2.0
#include "coverage.hpp"

#include <dflash/core/random.hpp>
#include <dflash/data/anchors.hpp>

#include <bit>
#include <doctest/doctest.h>

namespace dflash::data {

namespace {

// The mean over every way to draw the anchors.
double mean_coverage(const std::vector<std::uint8_t>& trainable,
                     const std::vector<std::int32_t>& candidates,
                     int num_anchors,
                     int block_size) {
    double sum = 0;
    int draws = 0;
    for (std::uint32_t chosen = 0; chosen < (1U << candidates.size()); ++chosen) {
        if (std::popcount(chosen) != num_anchors) {
            continue;
        }
        ++draws;
        for (int t = 0; t < static_cast<int>(trainable.size()); ++t) {
            bool is_covered = false;
            for (std::size_t c = 0; c < candidates.size(); ++c) {
                const bool is_drawn = ((chosen >> c) & 1U) != 0;
                is_covered =
                    is_covered || (is_drawn && t > candidates[c] && t < candidates[c] + block_size);
            }
            sum += is_covered && trainable[static_cast<std::size_t>(t)] != 0 ? 1 : 0;
        }
    }
    return sum / draws;
}

}  // namespace

TEST_SUITE("data.coverage") {
    TEST_CASE("coverage: is the mean over all draws") {
        RandomStream random(7, Purpose::Test, 0, 0);
        for (int i = 0; i < 200; ++i) {
            std::vector<std::uint8_t> trainable(1 + random.below(14));
            for (std::uint8_t& bit : trainable) {
                bit = random.below(4) > 0 ? 1 : 0;
            }
            const std::vector<std::int32_t> candidates = anchor_candidates(trainable);
            const auto num_anchors = static_cast<int>(random.below(candidates.size() + 1));
            const auto block_size = static_cast<int>(2 + random.below(6));
            CAPTURE(i);
            CHECK(expected_coverage(trainable, candidates, num_anchors, block_size) ==
                  doctest::Approx(mean_coverage(trainable, candidates, num_anchors, block_size)));
        }
    }
}

}  // namespace dflash::data
