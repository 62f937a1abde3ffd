// SPDX-License-Identifier: Apache-2.0
// Uniform numbers of one token of a sequence.
#pragma once

#include <dflash/core/check.hpp>
#include <dflash/core/random.hpp>

#include <cstdint>

namespace dflash::eval {

/// Words of the stream whose first one is target::sampling_uniform(): the number with which the
/// target itself draws the token.
enum class TokenUniform : int {
    Draft = 1,  ///< with which a draft is drawn
    Test = 2,   ///< with which it is kept or refused
};

/// In [0, 1), with 24 bits: a function of seed, sequence, position and use alone.
inline float token_uniform(std::uint64_t seed,
                           std::int64_t sequence,
                           std::int64_t position,
                           TokenUniform use) {
    RandomStream stream(seed,
                        Purpose::Sampling,
                        narrow<std::uint32_t>(position),
                        static_cast<std::uint64_t>(sequence));
    for (int skipped = 0; skipped < static_cast<int>(use); ++skipped) {
        stream.next_u32();
    }
    return static_cast<float>(stream.next_u32() >> 8U) * 0x1p-24F;
}

}  // namespace dflash::eval
