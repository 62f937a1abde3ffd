// SPDX-License-Identifier: Apache-2.0
// Texts around real decoding: those to be judged as training does, and those that people look at.
#pragma once

#include <dflash/data/tokenizer.hpp>
#include <dflash/train/acceptance_run.hpp>
#include <dflash/train/decoding_pool.hpp>
#include <dflash/train/eval_prompts.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace dflash::train {

/// The first `most` texts that were decoded and have something to judge.
std::vector<JudgedText> written_texts(std::span<const eval::DecodeTask> tasks,
                                      std::span<const eval::DecodedText> decoded,
                                      std::size_t most);

/// The same of the prompts' own answers, cut at `longest` tokens, as what is decoded.
std::vector<JudgedText> answered_texts(std::span<const EvalPrompt> prompts,
                                       std::size_t longest,
                                       std::size_t most);

/// A text that is at least as long as any to be judged, whole and cut to half, a quarter and so on
/// to a few tokens. Each cut has as many anchors as a text of its length can have: an answer as
/// long as the text's, if a token is left for the prompt. The text has two tokens or more.
std::vector<JudgedText> cut_in_halves(const JudgedText& text);

ShownText show_text(const data::Tokenizer& tokenizer,
                    const EvalPrompt& prompt,
                    const eval::DecodedText& plain,
                    const eval::DecodedText& drafted);

/// Lines: the prompt, the plain text, the drafted one with every round's drafts in brackets.
std::vector<std::string> to_lines(const ShownText& shown);

}  // namespace dflash::train
