// SPDX-License-Identifier: Apache-2.0
#include <dflash/eval/prompt_lookup.hpp>

#include <algorithm>

namespace dflash::eval {

std::vector<TokenId> look_up(std::span<const TokenId> tokens, std::int64_t count) {
    const auto size = std::ssize(tokens);
    for (std::int64_t n = std::min(kLongestMatch, size - 1); n >= 1; --n) {
        const auto suffix = tokens.end() - n;
        // The match may overlap the suffix, but something must follow it.
        const auto found = std::search(tokens.begin(), tokens.end() - 1, suffix, tokens.end());
        if (found != tokens.end() - 1) {
            const auto begin = found + n;
            return {begin, begin + std::min(count, tokens.end() - begin)};
        }
    }
    return {};
}

std::vector<std::vector<TokenId>> PromptLookup::propose(std::span<const SequenceView> sequences,
                                                        const ChoiceRule& /*rule*/) {
    std::vector<std::vector<TokenId>> drafts;
    for (const SequenceView& sequence : sequences) {
        drafts.push_back(look_up(sequence.tokens, block_size_ - 1));
    }
    return drafts;
}

}  // namespace dflash::eval
