// SPDX-License-Identifier: Apache-2.0
// Rows of data as prompts that the target is to answer, for judging a drafter.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/train/run_data.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

struct EvalPrompt {
    std::int64_t row = 0;          ///< over all files, as in the rows' order
    std::string place;             ///< "rows.jsonl:7"
    std::vector<TokenId> tokens;   ///< what a server would send to the model
    std::vector<TokenId> answer;   ///< the row's own, up to what ends it; empty if it has none
    std::string category;          ///< of the row's field of one of these names: category, task,
                                   ///< source, dataset, subset; else empty
    std::optional<bool> thinking;  ///< mode in which it is answered, where the row says or shows it
};

/// Rows that were left out, by reason.
struct SkippedRows {
    std::int64_t count = 0;
    std::string example;  ///< place and sentence of the first
};

struct EvalPrompts {
    std::vector<EvalPrompt> prompts;  ///< in the order of the rows
    std::int64_t num_rows = 0;        ///< in the files
    std::int64_t num_read = 0;        ///< looked at until there were enough
    std::map<std::string, SkippedRows> left_out;
    /// Rows whose text, rendered as training does, does not begin with the prompt: their answers
    /// are left out.
    SkippedRows other_rendering;
};

struct EvalPromptOptions {
    std::int64_t count = 64;  ///< at most; fewer rows than the files have are drawn by the seed
    std::uint64_t seed = 0;
    std::int64_t longest = 0;  ///< tokens of a prompt, so that the context has room for an answer
    std::optional<bool> thinking;  ///< of rows that do not say themselves
    data::RenderOptions render{};
};

/// Tokens that a prompt may have, so that the contexts of target and drafter have room for an
/// answer of `answer_tokens`, which is eval.acceptance_tokens. Throws Error{Config} if they have
/// none.
std::int64_t longest_prompt(std::int64_t answer_tokens,
                            std::int64_t target_context,
                            std::int64_t draft_context);

/// Splits tokens at the last stretch that the mask marks, which is the answer. Where it marks none
/// all of them are the prompt, and the result is false.
bool split_at_answer(const std::vector<TokenId>& tokens,
                     const std::vector<std::uint8_t>& mask,
                     EvalPrompt& prompt);

/// Reads prompts of the files of a list. The last answer of a conversation is what is to be written
/// anew; of finished tokens or text, what their mask or the chat marks say the model wrote last.
/// Throws Error as RowFile does, and Error{Data} with all reasons if no row is left.
EvalPrompts read_eval_prompts(const std::string& list,
                              const RunText& text,
                              const data::RowFileOptions& files,
                              const EvalPromptOptions& options);

}  // namespace dflash::train
