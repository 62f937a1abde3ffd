// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/data/dataset.hpp>

#include <algorithm>

namespace dflash::data {

std::vector<std::uint8_t> loss_mask(const Encoding& encoding, const std::vector<ByteRange>& spans) {
    DFLASH_CHECK(encoding.ranges.size() == encoding.ids.size(),
                 "{} tokens with {} ranges: encode with ranges",
                 encoding.ids.size(),
                 encoding.ranges.size());
    std::vector<std::uint8_t> mask(encoding.ids.size(), 0);
    for (std::size_t i = 0; i < mask.size(); ++i) {
        const ByteRange token = encoding.ranges[i];
        // The first span that ends behind the token's begin is the first that can touch it.
        auto span = std::upper_bound(
            spans.begin(), spans.end(), token.begin, [](std::int64_t begin, const ByteRange& s) {
                return begin < s.end;
            });
        for (; mask[i] == 0 && span != spans.end() && span->begin < token.end; ++span) {
            const bool shares_a_byte =
                std::max(span->begin, token.begin) < std::min(span->end, token.end);
            mask[i] = shares_a_byte ? 1 : 0;
        }
    }
    return mask;
}

}  // namespace dflash::data
