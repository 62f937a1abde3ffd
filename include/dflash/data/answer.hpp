// SPDX-License-Identifier: Apache-2.0
// What a model wrote behind a prompt, as the message of a row.
#pragma once

#include <dflash/data/chat_format.hpp>
#include <dflash/data/conversation.hpp>
#include <dflash/data/tokenizer.hpp>

#include <span>
#include <string>

namespace dflash::data {

/// A prompt, or what a model wrote behind it: as text, and as the tokens that the model saw or
/// chose.
struct TokenText {
    std::string text;
    std::span<const TokenId> tokens;
};

struct ReadAnswer {
    Message message;
    /// Whether the conversation with this message is written and tokenised exactly as the model saw
    /// and wrote it, marks included: what is trained on is then what the model said.
    bool comes_back = false;
};

/// `prompt`: what format.render() gave for `conversation` with `options` and add_generation_prompt.
/// `answer`: what the model wrote behind it, without the token that ended its turn; `cut` if there
/// was none. Reasoning goes into reasoning_content, also where it was cut before its end.
ReadAnswer read_answer(const ChatFormat& format,
                       const Tokenizer& tokenizer,
                       const Conversation& conversation,
                       const RenderOptions& options,
                       const TokenText& prompt,
                       const TokenText& answer,
                       bool cut);

/// An answer that was cut without the tokens at its end that are no text, as far as they can be the
/// beginning of a character whose rest was cut off. Other broken characters stay.
std::span<const TokenId> without_cut_character(const Tokenizer& tokenizer,
                                               std::span<const TokenId> tokens);

/// render() of a conversation whose last answer was cut: text and spans end with what the model
/// wrote, before the marks that the format would close it with. An answer that calls tools is
/// complete and stays as it is.
Rendered render_cut_answer(const ChatFormat& format,
                           const Conversation& conversation,
                           const RenderOptions& options);

}  // namespace dflash::data
