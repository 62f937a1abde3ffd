// SPDX-License-Identifier: Apache-2.0
// Held-out samples as prompts that are really decoded during training.
#pragma once

#include <dflash/data/dataset.hpp>
#include <dflash/train/eval_prompts.hpp>

#include <cstdint>
#include <vector>

namespace dflash::train {

struct HeldOutPromptOptions {
    std::int64_t count = 16;  ///< at most
    std::uint64_t seed = 0;
    std::int64_t longest = 0;  ///< tokens of a prompt, so that the context has room for an answer
};

/// Prompts by which training judges its drafter: what a sample holds before its last trained
/// stretch, that is the conversation up to the last answer, as read_eval_prompts() takes it.
/// The same for the same samples and seed, in the order of `ids`. Samples that begin with an answer
/// and those with a prompt above `longest` are left out and counted. May be empty.
EvalPrompts held_out_prompts(const data::Dataset& dataset,
                             const std::vector<SampleId>& ids,
                             const HeldOutPromptOptions& options);

}  // namespace dflash::train
