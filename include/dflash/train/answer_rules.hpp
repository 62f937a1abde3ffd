// SPDX-License-Identifier: Apache-2.0
// How a target answers under some settings, and what that makes its answers comparable to.
#pragma once

#include <dflash/target/generation_config.hpp>
#include <dflash/train/response_source.hpp>

#include <string>
#include <vector>

namespace dflash::train {

struct AnswerRules {
    target::Sampling sampling;
    std::vector<TokenId> stop_tokens;  ///< the model's own, and those that end a turn of the format
    bool found_config = false;         ///< whether there is a generation_config.json
    std::vector<std::string> ignored;  ///< what it asks for and is not followed

    /// Reads generation_config.json; settings that have a value go before it.
    static AnswerRules read(const Settings& settings, const RunText& text);

    /// "greedy", or "temperature 0.6, top_p 0.95, top_k 20".
    std::string describe_sampling() const;

    /// Warnings about what is ignored, and about answers that nothing ends.
    void warn() const;
};

ResponseOptions response_options(const Settings& settings,
                                 data::AnswerChoice choice,
                                 const RunText& text,
                                 const AnswerRules& rules);

/// What makes an answer another one, but for the target, the data, the thinking mode and how many
/// samples there are.
ResponseIdentity answer_identity(const Settings& settings,
                                 const RunText& text,
                                 const AnswerRules& rules);

}  // namespace dflash::train
