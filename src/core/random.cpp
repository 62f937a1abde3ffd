// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/random.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <set>

namespace dflash {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
    // Multipliers and Weyl constants of the paper's table 2.
    constexpr std::uint64_t kM0 = 0xD2511F53;
    constexpr std::uint64_t kM1 = 0xCD9E8D57;
    constexpr std::uint32_t kW0 = 0x9E3779B9;
    constexpr std::uint32_t kW1 = 0xBB67AE85;
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t product0 = kM0 * counter[0];
        const std::uint64_t product1 = kM1 * counter[2];
        counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
                   static_cast<std::uint32_t>(product1),
                   static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
                   static_cast<std::uint32_t>(product0)};
        key[0] += kW0;
        key[1] += kW1;
    }
    return counter;
}

RandomStream::RandomStream(std::uint64_t seed,
                           Purpose purpose,
                           std::uint32_t epoch,
                           std::uint64_t id)
    : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)} {
    // Purpose, epoch and id make three of the four counter words unique per stream; the fourth
    // counts blocks. Epoch and purpose share a word, which bounds them to 2^20 epochs and 2^12
    // purposes.
    DFLASH_CHECK(epoch < (1U << 20) && static_cast<std::uint32_t>(purpose) < (1U << 12),
                 "epoch {} out of range",
                 epoch);
    counter_ = {0,
                (static_cast<std::uint32_t>(purpose) << 20) | epoch,
                static_cast<std::uint32_t>(id),
                static_cast<std::uint32_t>(id >> 32)};
}

std::uint32_t RandomStream::next_u32() {
    if (used_ == 4) {
        block_ = philox4x32(counter_, key_);
        ++counter_[0];
        used_ = 0;
    }
    return block_[used_++];
}

std::uint64_t RandomStream::next_u64() {
    const std::uint64_t high = next_u32();
    return (high << 32) | next_u32();
}

std::uint64_t RandomStream::below(std::uint64_t n) {
    DFLASH_CHECK(n >= 1, "below({})", n);
    // Values under 2^64 mod n would make the small remainders more likely.
    const std::uint64_t reject_below = (0 - n) % n;
    for (;;) {
        const std::uint64_t value = next_u64();
        if (value >= reject_below) {
            return value % n;
        }
    }
}

double RandomStream::uniform() {
    return static_cast<double>(next_u64() >> 11) * 0x1.0p-53;
}

double RandomStream::normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

std::vector<std::uint64_t> RandomStream::sample_sorted(std::uint64_t n, std::uint64_t count) {
    std::vector<std::uint64_t> chosen;
    if (count >= n) {
        chosen.resize(n);
        std::iota(chosen.begin(), chosen.end(), 0);
        return chosen;
    }
    std::set<std::uint64_t> set;
    for (std::uint64_t j = n - count; j < n; ++j) {
        const std::uint64_t candidate = below(j + 1);
        if (!set.insert(candidate).second) {
            set.insert(j);
        }
    }
    chosen.assign(set.begin(), set.end());
    return chosen;
}

std::vector<std::int64_t> RandomStream::permutation(std::int64_t n) {
    DFLASH_CHECK(n >= 0, "permutation({})", n);
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i) {
        std::swap(order[i - 1], order[below(i)]);
    }
    return order;
}

std::uint64_t stable_hash(const char* data, std::size_t size) {
    std::uint64_t hash = 0xcbf29ce484222325;
    for (std::size_t i = 0; i < size; ++i) {
        hash = (hash ^ static_cast<unsigned char>(data[i])) * 0x100000001b3;
    }
    return hash;
}

}  // namespace dflash
