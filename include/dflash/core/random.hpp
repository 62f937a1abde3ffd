// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: every draw is a pure function of (seed, purpose, epoch, id, index),
// so results depend neither on threads nor on what was drawn before, and resuming needs no
// generator state.
//
// Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace dflash {

/// What numbers are drawn for; streams of different purposes are independent. The values are part
/// of the run's maths: never renumber.
enum class Purpose : std::uint32_t {
    Shuffle = 1,      ///< order of the samples; id 0
    Anchors = 2,      ///< anchors of a sample; id = sample id
    Weights = 3,      ///< initial weights; id = hash of the weight's name
    Holdout = 4,      ///< which samples are held out; id 0
    EvalAnchors = 5,  ///< anchors of a held-out sample; id = sample id
    Mixture = 6,      ///< which samples of a weighted file an epoch has; id = index of the file
    Sampling = 7,     ///< tokens of answers; epoch = position, id = the sequence
    Thinking = 8,     ///< whether an answer reasons first; id = the answer
    Test = 1000,
};

/// Ten rounds of Philox4x32 on one counter block.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

/// A stream of numbers for one (seed, purpose, epoch, id).
class RandomStream {
  public:
    RandomStream(std::uint64_t seed, Purpose purpose, std::uint32_t epoch, std::uint64_t id);

    std::uint32_t next_u32();
    std::uint64_t next_u64();

    /// Uniform in [0, n), without bias (rejection). n >= 1.
    std::uint64_t below(std::uint64_t n);

    /// Uniform in [0, 1), 53 bits.
    double uniform();

    /// Standard normal (Box-Muller; each draw uses two uniforms and keeps no state).
    double normal();

    /// `count` distinct values of [0, n) in rising order; all of them if count >= n. Robert Floyd's
    /// sampling: time and memory grow with count, not with n.
    std::vector<std::uint64_t> sample_sorted(std::uint64_t n, std::uint64_t count);

    /// Random order of 0 .. n-1 (Fisher-Yates).
    std::vector<std::int64_t> permutation(std::int64_t n);

  private:
    std::array<std::uint32_t, 2> key_;
    std::array<std::uint32_t, 4> counter_;
    std::array<std::uint32_t, 4> block_{};
    std::uint32_t used_ = 4;
};

/// 64-bit FNV-1a hash of a text: stable across runs and machines.
std::uint64_t stable_hash(const char* data, std::size_t size);

}  // namespace dflash
