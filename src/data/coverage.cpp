// SPDX-License-Identifier: Apache-2.0
#include "coverage.hpp"

#include <algorithm>
#include <vector>

namespace dflash::data {

double expected_coverage(std::span<const std::uint8_t> trainable,
                         std::span<const std::int32_t> candidates,
                         std::int64_t num_anchors,
                         std::int64_t block_size) {
    // missed[n]: chance that none of n given candidates is drawn, without replacement.
    const auto total = std::ssize(candidates);
    std::vector<double> missed(static_cast<std::size_t>(block_size), 1);
    for (std::int64_t n = 1; n < block_size && n <= total; ++n) {
        const auto i = static_cast<std::size_t>(n);
        const double left =
            static_cast<double>(std::max<std::int64_t>(total - num_anchors - (n - 1), 0));
        missed[i] = missed[i - 1] * left / static_cast<double>(total - (n - 1));
    }
    double covered = 0;
    std::size_t first = 0;   // of the candidates within a block before position t ...
    std::size_t behind = 0;  // ... and one past the last of them
    for (std::int64_t t = 0; t < std::ssize(trainable); ++t) {
        while (behind < candidates.size() && candidates[behind] < t) {
            ++behind;
        }
        while (first < behind && candidates[first] + block_size <= t) {
            ++first;
        }
        if (trainable[static_cast<std::size_t>(t)] != 0) {
            covered += 1 - missed[behind - first];
        }
    }
    return covered;
}

}  // namespace dflash::data
