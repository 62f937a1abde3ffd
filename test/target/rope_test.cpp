// SPDX-License-Identifier: Apache-2.0
// Bands and factors of published models, computed with numpy from the formulas of transformers'
// modeling_rope_utils.py.
#include <dflash/target/config.hpp>

#include <cmath>
#include <doctest/doctest.h>

namespace dflash::target {
namespace {

struct Bands {
    int kept = 0;
    int blended = 0;
    int divided = 0;
    int first_changed = -1;
    int first_divided = -1;
};

// How each frequency relates to the unscaled one.
Bands bands(const RopeConfig& rope, std::int64_t head_dim) {
    RopeConfig plain;
    plain.theta = rope.theta;
    const RopeTable scaled = rope_table(rope, head_dim, 0);
    const RopeTable unscaled = rope_table(plain, head_dim, 0);
    Bands found;
    for (std::size_t i = 0; i < scaled.inv_freq.size(); ++i) {
        const double ratio =
            static_cast<double>(scaled.inv_freq[i]) / static_cast<double>(unscaled.inv_freq[i]);
        const bool kept = std::abs(ratio - 1) < 1e-6;
        const bool divided = std::abs(ratio * rope.factor - 1) < 1e-6;
        found.kept += kept ? 1 : 0;
        found.divided += divided ? 1 : 0;
        found.blended += kept || divided ? 0 : 1;
        if (!kept && found.first_changed < 0) {
            found.first_changed = static_cast<int>(i);
        }
        if (divided && found.first_divided < 0) {
            found.first_divided = static_cast<int>(i);
        }
    }
    return found;
}

}  // namespace

TEST_SUITE("target.rope") {
    TEST_CASE("rope: default and linear frequencies") {
        RopeConfig rope;
        rope.theta = 1e6;
        const RopeTable plain = rope_table(rope, 128, 40960);
        REQUIRE(plain.inv_freq.size() == 64);
        CHECK(plain.attention_factor == 1);
        CHECK(plain.inv_freq[0] == 1.0F);
        CHECK(plain.inv_freq[32] == doctest::Approx(1e-3).epsilon(1e-7));
        rope.kind = RopeKind::Linear;
        rope.factor = 4;
        const RopeTable linear = rope_table(rope, 128, 40960);
        for (std::size_t i = 0; i < 64; ++i) {
            CHECK(linear.inv_freq[i] == plain.inv_freq[i] / 4);
        }
        CHECK(linear.attention_factor == 1);
    }

    TEST_CASE("rope: llama3 keeps, blends and divides the published numbers of frequencies") {
        RopeConfig rope;
        rope.kind = RopeKind::Llama3;
        rope.theta = 5e5;
        rope.factor = 8;
        rope.low_freq_factor = 1;
        rope.high_freq_factor = 4;
        rope.original_max_position = 8192;
        const Bands large = bands(rope, 128);  // Llama-3.1-8B
        CHECK(large.kept == 29);
        CHECK(large.blended == 6);
        CHECK(large.divided == 29);
        rope.factor = 32;
        const Bands small = bands(rope, 64);  // Llama-3.2-1B
        CHECK(small.kept == 15);
        CHECK(small.blended == 3);
        CHECK(small.divided == 14);
        CHECK(rope_table(rope, 64, 0).attention_factor == 1);
    }

    TEST_CASE("rope: yarn ramps between the published dimensions") {
        RopeConfig rope;
        rope.kind = RopeKind::Yarn;
        rope.theta = 1e6;
        rope.factor = 4;
        rope.original_max_position = 32768;
        const Bands qwen = bands(rope, 128);  // Qwen3: from 23 to 40
        CHECK(qwen.first_changed == 24);
        CHECK(qwen.first_divided == 40);
        CHECK(rope_table(rope, 128, 0).attention_factor == doctest::Approx(1.138629).epsilon(1e-6));

        rope.theta = 150000;
        rope.factor = 32;
        rope.truncate = false;
        rope.original_max_position = 4096;
        const Bands oss = bands(rope, 64);  // gpt-oss: from 8.0928 to 17.3980
        CHECK(oss.first_changed == 9);
        CHECK(oss.first_divided == 18);
        CHECK(rope_table(rope, 64, 0).attention_factor == doctest::Approx(1.346574).epsilon(1e-6));
        // Pair 9 is divided by (9 - 8.0928) / (17.3980 - 8.0928) of the way.
        const double share = (9 - 8.0928) / (17.3980 - 8.0928);
        const double plain = std::pow(150000.0, -18.0 / 64);
        CHECK(rope_table(rope, 64, 0).inv_freq[9] ==
              doctest::Approx(plain * (share / 32 + 1 - share)).epsilon(1e-4));
    }

    TEST_CASE("rope: the attention factor of yarn can be given") {
        RopeConfig rope;
        rope.kind = RopeKind::Yarn;
        rope.theta = 1e6;
        rope.factor = 40;
        rope.original_max_position = 4096;
        rope.mscale = 1.0;
        rope.mscale_all_dim = 0.5;
        const double log_factor = 0.1 * std::log(40.0);
        CHECK(rope_table(rope, 64, 0).attention_factor ==
              doctest::Approx((log_factor + 1) / (0.5 * log_factor + 1)));
        rope.mscale_all_dim = 0.0;  // counts as not set
        CHECK(rope_table(rope, 64, 0).attention_factor == doctest::Approx(log_factor + 1));
        rope.attention_factor = 1.25;
        CHECK(rope_table(rope, 64, 0).attention_factor == 1.25);
    }

    TEST_CASE("rope: yarn without an original length takes the maximum of the model") {
        RopeConfig rope;
        rope.kind = RopeKind::Yarn;
        rope.theta = 1e6;
        rope.factor = 4;
        RopeConfig given = rope;
        given.original_max_position = 32768;
        CHECK(rope_table(rope, 128, 32768).inv_freq == rope_table(given, 128, 1).inv_freq);
    }
}

}  // namespace dflash::target
