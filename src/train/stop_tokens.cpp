// SPDX-License-Identifier: Apache-2.0
#include <dflash/train/stop_tokens.hpp>

#include <algorithm>

namespace dflash::train {

std::vector<TokenId> answer_stop_tokens(const target::GenerationConfig& config,
                                        const data::Tokenizer& tokenizer,
                                        const data::ChatFormat& format) {
    std::vector<TokenId> tokens = config.stop_tokens;
    // Rows of finished tokens need no format, and where it is not known it has no marks.
    if (!format.turn_tokens().empty()) {
        for (const std::string& end : format.text_marks().turn_ends) {
            const std::vector<TokenId> ids = tokenizer.encode(end).ids;
            if (ids.size() == 1) {
                tokens.push_back(ids.front());
            }
        }
    }
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    return tokens;
}

}  // namespace dflash::train
