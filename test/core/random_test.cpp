// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/random.hpp>

#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <numeric>
#include <set>
#include <string_view>

namespace dflash {
namespace {

using Words4 = std::array<std::uint32_t, 4>;
using Words2 = std::array<std::uint32_t, 2>;

RandomStream stream_of(std::uint64_t id) {
    return {42, Purpose::Test, 0, id};
}

TEST_SUITE_BEGIN("core.random");

TEST_CASE("Philox4x32-10 gives its published answers") {
    // Random123 1.14, tests/kat_vectors.
    struct Case {
        Words4 counter;
        Words2 key;
        Words4 answer;
    };

    constexpr std::uint32_t kOnes = 0xffffffff;
    const Case cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{kOnes, kOnes, kOnes, kOnes},
         {kOnes, kOnes},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (const Case& c : cases) {
        CHECK(philox4x32(c.counter, c.key) == c.answer);
    }
}

TEST_CASE("a stream is Philox over block, purpose and epoch, and id, keyed by the seed") {
    // This mapping is part of the maths of runs: checkpoints of older versions rely on it.
    RandomStream stream(0x1122334455667788, Purpose::Anchors, 3, 0xaabbccdd00000007);
    for (std::uint32_t block = 0; block < 3; ++block) {
        const Words4 expected =
            philox4x32({block, 2U << 20 | 3, 0x00000007, 0xaabbccdd}, {0x55667788, 0x11223344});
        for (const std::uint32_t word : expected) {
            CHECK(stream.next_u32() == word);
        }
    }
    RandomStream words(1, Purpose::Test, 0, 0);
    RandomStream pairs(1, Purpose::Test, 0, 0);
    const std::uint64_t high = words.next_u32();
    CHECK(pairs.next_u64() == (high << 32 | words.next_u32()));
    CHECK(static_cast<std::uint32_t>(Purpose::Shuffle) == 1);
    CHECK(static_cast<std::uint32_t>(Purpose::Anchors) == 2);
    CHECK(static_cast<std::uint32_t>(Purpose::Weights) == 3);
    CHECK(static_cast<std::uint32_t>(Purpose::Holdout) == 4);
    CHECK(static_cast<std::uint32_t>(Purpose::EvalAnchors) == 5);
}

TEST_CASE("streams differ in every part of their name") {
    std::set<std::uint64_t> firsts;
    for (std::uint64_t seed : {1ULL, 2ULL, 1ULL << 40}) {
        for (const auto purpose : {Purpose::Shuffle, Purpose::Anchors, Purpose::Test}) {
            for (std::uint32_t epoch : {0U, 1U, (1U << 20) - 1}) {
                for (std::uint64_t id : {0ULL, 1ULL, 1ULL << 33}) {
                    firsts.insert(RandomStream(seed, purpose, epoch, id).next_u64());
                }
            }
        }
    }
    CHECK(firsts.size() == 81);
    CHECK_THROWS_AS(RandomStream(1, Purpose::Test, 1U << 20, 0), Error);
}

TEST_CASE("below stays below and is even") {
    RandomStream random = stream_of(1);
    CHECK(random.below(1) == 0);
    CHECK_THROWS_AS(random.below(0), Error);
    std::array<int, 6> counts{};
    for (int i = 0; i < 60'000; ++i) {
        ++counts.at(random.below(6));
    }
    double chi2 = 0;
    for (const int count : counts) {
        chi2 += (count - 10'000.0) * (count - 10'000.0) / 10'000.0;
    }
    CHECK(chi2 < 20.5);  // 0.1 % point for 5 degrees of freedom
    // Where a plain remainder would be biased: two thirds of the values lie below half of n.
    const std::uint64_t n = 3ULL << 62;
    int low = 0;
    for (int i = 0; i < 10'000; ++i) {
        const std::uint64_t value = random.below(n);
        REQUIRE(value < n);
        low += value < n / 2 ? 1 : 0;
    }
    CHECK(low > 4'800);
    CHECK(low < 5'200);
}

TEST_CASE("uniform and normal have their moments") {
    RandomStream random = stream_of(2);
    constexpr int kCount = 40'000;
    double sum = 0;
    double lowest = 1;
    double highest = 0;
    for (int i = 0; i < kCount; ++i) {
        const double value = random.uniform();
        sum += value;
        lowest = std::min(lowest, value);
        highest = std::max(highest, value);
    }
    CHECK(lowest >= 0);
    CHECK(highest < 1);
    CHECK(std::abs(sum / kCount - 0.5) < 0.006);  // four standard errors

    double moment1 = 0;
    double moment2 = 0;
    double moment4 = 0;
    for (int i = 0; i < kCount; ++i) {
        const double value = random.normal();
        REQUIRE(std::isfinite(value));
        moment1 += value / kCount;
        moment2 += value * value / kCount;
        moment4 += value * value * value * value / kCount;
    }
    CHECK(std::abs(moment1) < 0.02);
    CHECK(std::abs(moment2 - 1) < 0.03);
    CHECK(std::abs(moment4 - 3) < 0.25);
}

TEST_CASE("a sample is sorted, distinct, in range, and each value equally likely") {
    RandomStream random = stream_of(3);
    std::array<int, 10> hits{};
    for (int i = 0; i < 10'000; ++i) {
        const auto sample = random.sample_sorted(10, 3);
        REQUIRE(sample.size() == 3);
        REQUIRE((sample[0] < sample[1] && sample[1] < sample[2] && sample[2] < 10));
        for (const std::uint64_t value : sample) {
            ++hits.at(value);
        }
    }
    for (const int count : hits) {
        CHECK(std::abs(count - 3'000) < 190);  // four standard deviations
    }
    CHECK(random.sample_sorted(3, 3) == std::vector<std::uint64_t>{0, 1, 2});
    CHECK(random.sample_sorted(3, 9) == std::vector<std::uint64_t>{0, 1, 2});
    CHECK(random.sample_sorted(0, 5).empty());
    CHECK(random.sample_sorted(5, 0).empty());
    const auto huge = random.sample_sorted(1ULL << 60, 4);
    CHECK(huge.size() == 4);
    CHECK(std::is_sorted(huge.begin(), huge.end()));
}

TEST_CASE("a permutation holds every number once, and every order is as likely") {
    RandomStream random = stream_of(4);
    auto order = random.permutation(1000);
    CHECK_FALSE(std::is_sorted(order.begin(), order.end()));
    std::sort(order.begin(), order.end());
    std::vector<std::int64_t> expected(1000);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(order == expected);
    std::array<int, 27> counts{};
    for (int i = 0; i < 12'000; ++i) {
        const auto three = random.permutation(3);
        ++counts.at(static_cast<std::size_t>(three[0] * 9 + three[1] * 3 + three[2]));
    }
    CHECK(std::count(counts.begin(), counts.end(), 0) == 21);
    for (const int count : counts) {
        CHECK((count == 0 || std::abs(count - 2'000) < 165));
    }
    CHECK(random.permutation(0).empty());
    CHECK(random.permutation(1) == std::vector<std::int64_t>{0});
    CHECK_THROWS_AS(random.permutation(-1), Error);
}

TEST_CASE("the hash of texts is FNV-1a") {
    // Published values: http://www.isthe.com/chongo/tech/comp/fnv, test vectors of 64-bit FNV-1a.
    const std::pair<std::string_view, std::uint64_t> cases[] = {
        {"", 0xcbf29ce484222325}, {"a", 0xaf63dc4c8601ec8c}, {"foobar", 0x85944171f73967e8}};
    for (const auto& [text, hash] : cases) {
        CHECK(stable_hash(text.data(), text.size()) == hash);
    }
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash
