// SPDX-License-Identifier: Apache-2.0
// Plain decoding as fast as this program does it: the target's generator, one token a pass, with
// CUDA graphs. What drafted decoding has to beat.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/eval/decode_rounds.hpp>
#include <dflash/target/generator.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace dflash::eval {

/// Used, from its making to its end, by the target's worker only.
class PlainDecoder : NonCopyable {
  public:
    /// Room for `slots` sequences of `capacity` tokens, prompt and answer. `target` must outlive
    /// this.
    PlainDecoder(target::TargetModel& target,
                 std::int64_t slots,
                 std::int64_t capacity,
                 std::vector<TokenId> stop_tokens);

    /// Decodes tasks as decode() does without drafts: a round a token behind each text's first;
    /// without leads. The prompts are read twice, once to know how long that takes. Rule, stop and
    /// on_progress of `options` count.
    DecodeRun decode(std::span<const DecodeTask> tasks, const DecodeOptions& options);

  private:
    /// Seconds it took. Texts in the order of the tasks.
    double answer(std::span<const DecodeTask> tasks,
                  const DecodeOptions& options,
                  bool first_tokens_only,
                  DecodeRun& run);

    target::Generator generator_;
};

}  // namespace dflash::eval
