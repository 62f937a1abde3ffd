// SPDX-License-Identifier: Apache-2.0
// What rounds of draft and verify say about the drafts.
#pragma once

#include <dflash/eval/decode_rounds.hpp>

#include <cstdint>
#include <vector>

namespace dflash::eval {

/// Counts over rounds; addition is exact, so the order of texts does not matter.
class Acceptance {
  public:
    explicit Acceptance(std::int64_t block_size)
        : kept_(static_cast<std::size_t>(block_size)),
          right_(static_cast<std::size_t>(block_size)),
          compared_(static_cast<std::size_t>(block_size)) {}

    void add(const DecodedText& text);

    std::int64_t rounds() const { return rounds_; }

    std::int64_t texts() const { return texts_; }

    /// Mean over rounds of accepted drafts + 1: the bonus token counts, the anchor does not, and a
    /// text's last round counts whole, though the text may end within it. From 1 to the block size;
    /// 0 without rounds. The paper's tau, and the mean acceptance length of SGLang and vLLM;
    /// speculators' EAL is 1 less.
    double tau() const;

    /// Tokens that rounds emitted per pass of a sequence through the target: tau, less what behind
    /// the ends of texts was accepted in vain.
    double tokens_per_call() const;

    /// Share of rounds that kept the draft of slot k = 1 .. B - 1, and so all before it; at index
    /// k - 1.
    std::vector<double> kept_by_slot() const;

    /// Share of drafts of slot k that are what the text has at their place, also behind a refused
    /// one: what teacher-forced accuracy measures, at the anchors that decoding comes by.
    std::vector<double> right_by_slot() const;

    bool operator==(const Acceptance&) const = default;

  private:
    std::int64_t rounds_ = 0;
    std::int64_t texts_ = 0;
    std::int64_t accepted_ = 0;
    std::int64_t emitted_ = 0;            // by rounds
    std::vector<std::int64_t> kept_;      // [B] by slot
    std::vector<std::int64_t> right_;     // [B]
    std::vector<std::int64_t> compared_;  // [B]
};

}  // namespace dflash::eval
