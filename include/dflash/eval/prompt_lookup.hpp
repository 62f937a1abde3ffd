// SPDX-License-Identifier: Apache-2.0
// Prompt look-up: drafts are copied from the text so far, behind an earlier place where its last
// tokens stand already. What a drafter has to beat on text that repeats its prompt.
//
// Source: prompt look-up decoding as in transformers 5.24 (PromptLookupCandidateGenerator): the
// longest match wins, and of several the first.
#pragma once

#include <dflash/eval/draft_source.hpp>

namespace dflash::eval {

/// Up to `count` tokens that follow the first place where the last n tokens stand before, for the
/// largest n of kLongestMatch, ..., 1 that has one; none without a match.
std::vector<TokenId> look_up(std::span<const TokenId> tokens, std::int64_t count);

inline constexpr std::int64_t kLongestMatch = 3;

class PromptLookup final : public DraftSource {
  public:
    explicit PromptLookup(std::int64_t block_size) : block_size_(block_size) {}

    std::int64_t block_size() const override { return block_size_; }

    std::vector<std::vector<TokenId>> propose(std::span<const SequenceView> sequences,
                                              const ChoiceRule& /*rule*/) override;

  private:
    std::int64_t block_size_;
};

}  // namespace dflash::eval
