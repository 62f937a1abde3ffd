// SPDX-License-Identifier: Apache-2.0
#include <dflash/comm/buffer.hpp>
#include <dflash/core/check.hpp>

#include <algorithm>
#include <array>

namespace dflash::comm {

namespace {

const HostBuffer& as_host(const Buffer& buffer) {
    const auto* host = dynamic_cast<const HostBuffer*>(&buffer);
    DFLASH_CHECK(host != nullptr, "buffers of different types in one collective");
    return *host;
}

}  // namespace

void HostBuffer::sum_of(std::span<const Buffer* const> ranks,
                        std::size_t offset,
                        std::size_t count) {
    // In pieces that stay in the first-level cache. Every element is added up on its own, so
    // neither the pieces nor vector instructions change a bit.
    constexpr std::size_t kPiece = 1024;
    std::array<float, kPiece> sum{};
    for (std::size_t begin = 0; begin < count; begin += kPiece) {
        const std::size_t size = std::min(kPiece, count - begin);
        for (std::size_t r = 0; r < ranks.size(); ++r) {
            const float* values = as_host(*ranks[r]).values_.subspan(offset + begin, size).data();
            if (r == 0) {
                std::copy_n(values, size, sum.begin());
                continue;
            }
            for (std::size_t i = 0; i < size; ++i) {
                sum[i] += values[i];
            }
        }
        std::copy_n(sum.begin(), size, values_.subspan(offset + begin, size).begin());
    }
}

void HostBuffer::copy_of(const Buffer& other, std::size_t offset, std::size_t count) {
    std::ranges::copy(as_host(other).values_.subspan(offset, count),
                      values_.subspan(offset, count).begin());
}

}  // namespace dflash::comm
