// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/random.hpp>
#include <dflash/train/held_out_prompts.hpp>

#include <algorithm>
#include <fmt/format.h>

namespace dflash::train {

EvalPrompts held_out_prompts(const data::Dataset& dataset,
                             const std::vector<SampleId>& ids,
                             const HeldOutPromptOptions& options) {
    EvalPrompts result;
    result.num_rows = std::ssize(ids);
    const auto leave_out = [&](const char* reason, const EvalPrompt& prompt) {
        SkippedRows& group = result.left_out[reason];
        if (group.count++ == 0) {
            group.example = prompt.place;
        }
    };
    // Held-out samples are drawn with id 0, prompts of a file with id 1.
    RandomStream stream(options.seed, Purpose::Holdout, /*epoch=*/0, /*id=*/2);
    for (const std::int64_t place : stream.permutation(result.num_rows)) {
        if (std::ssize(result.prompts) == options.count) {
            break;
        }
        ++result.num_read;
        const SampleId id = ids[static_cast<std::size_t>(place)];
        const data::Sample sample = dataset.encode(id);
        EvalPrompt prompt;
        prompt.row = id;
        prompt.place = dataset.place_of(id);
        split_at_answer(sample.tokens, sample.trainable, prompt);
        if (prompt.tokens.empty()) {
            leave_out("no prompt before the answer", prompt);
        } else if (std::ssize(prompt.tokens) > options.longest) {
            leave_out("prompt longer than the context", prompt);
        } else {
            result.prompts.push_back(std::move(prompt));
        }
    }
    std::sort(result.prompts.begin(), result.prompts.end(), [](const auto& a, const auto& b) {
        return a.row < b.row;
    });
    return result;
}

}  // namespace dflash::train
