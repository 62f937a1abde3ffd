// SPDX-License-Identifier: Apache-2.0
// Rotary frequencies of the scaling variants, after transformers' modeling_rope_utils.py; computed
// in double and rounded once to fp32.
#include <dflash/core/check.hpp>
#include <dflash/target/config.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dflash::target {
namespace {

using std::numbers::pi;

// Llama 3.1: long wavelengths are divided by the factor, short ones kept, those between blended.
double llama3_frequency(const RopeConfig& rope, double frequency) {
    const double wavelength = 2 * pi / frequency;
    const double turns = rope.original_max_position / wavelength;
    if (turns > rope.high_freq_factor) {
        return frequency;
    }
    if (turns < rope.low_freq_factor) {
        return frequency / rope.factor;
    }
    const double keep =
        (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    return (1 - keep) * frequency / rope.factor + keep * frequency;
}

// YaRN (Peng et al., arXiv 2309.00071, section 3.2): the share by which dimension pair i is
// divided rises linearly between the pairs that turn beta_fast and beta_slow times over the
// original context.
struct YarnRamp {
    double low = 0;
    double high = 0;

    double divided_share(std::int64_t i) const {
        // Equal ends make a step; transformers widens it by 0.001 to avoid 0 / 0.
        const double width = high == low ? 0.001 : high - low;
        return std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
    }
};

YarnRamp yarn_ramp(const RopeConfig& rope, double original, std::int64_t head_dim) {
    const auto dims = static_cast<double>(head_dim);
    const auto pair_that_turns = [&](double turns) {
        return dims * std::log(original / (turns * 2 * pi)) / (2 * std::log(rope.theta));
    };
    double low = pair_that_turns(rope.beta_fast);
    double high = pair_that_turns(rope.beta_slow);
    if (rope.truncate) {
        low = std::floor(low);
        high = std::ceil(high);
    }
    return {.low = std::max(low, 0.0), .high = std::min(high, dims - 1)};
}

double yarn_attention_factor(const RopeConfig& rope) {
    const auto magnitude = [&](double mscale) {
        return rope.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1;
    };
    if (rope.attention_factor) {
        return *rope.attention_factor;
    }
    // A zero counts as not set, as in Python.
    if (rope.mscale.value_or(0) != 0 && rope.mscale_all_dim.value_or(0) != 0) {
        return magnitude(*rope.mscale) / magnitude(*rope.mscale_all_dim);
    }
    return magnitude(1);
}

}  // namespace

RopeTable rope_table(const RopeConfig& rope, std::int64_t head_dim, std::int64_t max_position) {
    DFLASH_CHECK(head_dim >= 2 && head_dim % 2 == 0, "head_dim is {}", head_dim);
    const double original = rope.original_max_position > 0 ? rope.original_max_position
                                                           : static_cast<double>(max_position);
    const YarnRamp ramp =
        rope.kind == RopeKind::Yarn ? yarn_ramp(rope, original, head_dim) : YarnRamp{};
    RopeTable table;
    table.inv_freq.reserve(static_cast<std::size_t>(head_dim / 2));
    for (std::int64_t i = 0; i < head_dim / 2; ++i) {
        double frequency =
            std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        switch (rope.kind) {
            case RopeKind::Default:
                break;
            case RopeKind::Linear:
                frequency /= rope.factor;
                break;
            case RopeKind::Llama3:
                frequency = llama3_frequency(rope, frequency);
                break;
            case RopeKind::Yarn: {
                const double divided = ramp.divided_share(i);
                frequency = frequency / rope.factor * divided + frequency * (1 - divided);
                break;
            }
        }
        table.inv_freq.push_back(static_cast<float>(frequency));
    }
    if (rope.kind == RopeKind::Yarn) {
        table.attention_factor = yarn_attention_factor(rope);
    }
    return table;
}

}  // namespace dflash::target
