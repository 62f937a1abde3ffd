// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/data/repetition.hpp>

#include <algorithm>
#include <numeric>
#include <vector>

namespace dflash::data {

double repeated_share(std::span<const TokenId> tokens, std::int64_t n) {
    DFLASH_CHECK(n >= 1, "n-grams of {} tokens", n);
    const auto size = static_cast<std::size_t>(n);
    if (tokens.size() <= size) {
        return 0;
    }
    // By sorting their beginnings: equal ones are then neighbours.
    std::vector<std::size_t> begins(tokens.size() - size + 1);
    std::iota(begins.begin(), begins.end(), 0);
    const auto gram = [&](std::size_t begin) { return tokens.subspan(begin, size); };
    std::sort(begins.begin(), begins.end(), [&](std::size_t a, std::size_t b) {
        return std::lexicographical_compare(
            gram(a).begin(), gram(a).end(), gram(b).begin(), gram(b).end());
    });
    std::size_t repeated = 0;
    for (std::size_t i = 1; i < begins.size(); ++i) {
        if (std::equal(
                gram(begins[i]).begin(), gram(begins[i]).end(), gram(begins[i - 1]).begin())) {
            ++repeated;
        }
    }
    return static_cast<double>(repeated) / static_cast<double>(begins.size());
}

}  // namespace dflash::data
