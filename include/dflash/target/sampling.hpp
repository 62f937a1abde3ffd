// SPDX-License-Identifier: Apache-2.0
// From logits to tokens: temperature, top-k, top-p, and draws by given uniform numbers, so that
// what is drawn depends on nothing but the row.
//
// R rows, V vocabulary. Everything is fp32 and stays on the device of the logits; nothing waits for
// it.
#pragma once

#include <dflash/core/random.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <span>

namespace dflash::target {

/// How the next token of a sequence is chosen.
struct Sampling {
    double temperature = 0;  ///< 0: greedy, the others then do not matter
    double top_p = 1;        ///< in (0, 1]; 1: off
    std::int64_t top_k = 0;  ///< 0: off

    bool greedy() const { return temperature == 0; }

    friend bool operator==(const Sampling&, const Sampling&) = default;
};

/// The rules of the rows of a batch, on their device: made once for many steps.
class SamplingRules {
  public:
    SamplingRules(std::span<const Sampling> rules_R, at::Device device);

    std::int64_t size() const { return size_; }

    bool all_greedy() const { return all_greedy_; }

    /// Probabilities [R, V] after temperature, then top-k, then top-p of what that left: the
    /// smallest set of the most probable tokens that holds at least top_p. Tokens as probable as
    /// the last one that is kept are kept, too. One-hot of the largest logit (smallest id at ties)
    /// where a row is greedy.
    at::Tensor probabilities(const at::Tensor& logits_RV) const;

    /// The next token of each row, int64 [R]: draw() from probabilities(), or the largest logit
    /// without them if all rows are greedy (`uniforms_R` may then be undefined).
    at::Tensor choose(const at::Tensor& logits_RV, const at::Tensor& uniforms_R) const;

  private:
    std::int64_t size_;
    bool all_greedy_ = true;
    bool any_greedy_ = false;
    std::int64_t largest_k_ = 0;    // 0: no row has a top-k
    bool all_top_p_have_k_ = true;  // of rows with a top-p
    bool any_top_p_ = false;
    at::Tensor temperatures_R1_;  // 1 where greedy
    at::Tensor k_R1_;             // int64; 0: off
    at::Tensor p_R1_;
    at::Tensor greedy_R1_;  // bool
};

/// SamplingRules::probabilities for rules that are used once.
at::Tensor probabilities(const at::Tensor& logits_RV, std::span<const Sampling> rules_R);

/// Inverse of the distribution function: the first token whose running sum exceeds uniform x the
/// whole sum, summed in fp64; never one of probability 0. `uniforms_R`: fp32 in [0, 1). Gives
/// int64 [R] on the device.
at::Tensor draw(const at::Tensor& probabilities_RV, const at::Tensor& uniforms_R);
at::Tensor draw(const at::Tensor& probabilities_RV, std::span<const float> uniforms_R);

/// The uniform number, in [0, 1), for the token at `position` of a sequence: a function of these
/// alone. `sequence` names the sequence among those of the seed.
float sampling_uniform(std::uint64_t seed, std::uint64_t sequence, std::int64_t position);

}  // namespace dflash::target
