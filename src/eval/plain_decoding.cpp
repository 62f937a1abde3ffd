// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/eval/plain_decoding.hpp>

#include <algorithm>
#include <c10/core/GradMode.h>
#include <chrono>
#include <optional>
#include <utility>

namespace dflash::eval {

PlainDecoder::PlainDecoder(target::TargetModel& target,
                           std::int64_t slots,
                           std::int64_t capacity,
                           std::vector<TokenId> stop_tokens)
    : generator_(target,
                 {.slots = slots, .capacity = capacity, .stop_tokens = std::move(stop_tokens)}) {}

double PlainDecoder::answer(std::span<const DecodeTask> tasks,
                            const DecodeOptions& options,
                            bool first_tokens_only,
                            DecodeRun& run) {
    std::size_t next = 0;
    std::int64_t done = 0;
    const std::int64_t chosen_before = generator_.tokens_chosen();
    const auto begin = std::chrono::steady_clock::now();
    generator_.run(
        [&]() -> std::optional<target::GenerationRequest> {
            if (next == tasks.size()) {
                return std::nullopt;
            }
            const DecodeTask& task = tasks[next];
            return target::GenerationRequest{
                .id = static_cast<std::int64_t>(next++),
                .prompt = task.prompt,
                .max_new_tokens = first_tokens_only ? 1 : task.max_new_tokens,
                .sampling = options.rule.sampling,
                .seed = options.rule.seed,
                .sequence = static_cast<std::uint64_t>(task.id)};
        },
        [&](target::Generation generation) {
            const auto index = static_cast<std::size_t>(generation.id);
            DecodedText& text = run.texts[index];
            text = {};
            text.id = tasks[index].id;
            text.emitted = std::move(generation.tokens);
            text.stopped = generation.stopped;
            // The anchor of the first pass is the text's first token.
            const auto first = std::ssize(tasks[index].prompt);
            for (std::int64_t t = 1; t < std::ssize(text.emitted); ++t) {
                text.rounds.push_back(
                    {first + t - 1, {}, 0, text.emitted[static_cast<std::size_t>(t)]});
            }
            ++done;
        },
        [&] {
            if (options.on_progress && !first_tokens_only) {
                options.on_progress(done, generator_.tokens_chosen() - chosen_before);
            }
            return options.stop && options.stop();
        });
    run.complete = run.complete && done == std::ssize(tasks);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

DecodeRun PlainDecoder::decode(std::span<const DecodeTask> tasks, const DecodeOptions& options) {
    const c10::NoGradGuard no_grad;
    DecodeRun run;
    run.texts.resize(tasks.size());
    run.prompts_s = answer(tasks, options, /*first_tokens_only=*/true, run);
    if (run.complete) {
        run.rounds_s =
            std::max(answer(tasks, options, /*first_tokens_only=*/false, run) - run.prompts_s, 0.0);
    }
    return run;
}

}  // namespace dflash::eval
