// SPDX-License-Identifier: Apache-2.0
// What a model wrote behind a prompt, as the message of a row.
#pragma once

#include <dflash/data/chat_format.hpp>
#include <dflash/data/conversation.hpp>

#include <string_view>

namespace dflash::data {

struct ReadAnswer {
    Message message;
    /// Whether the format writes the conversation with this message exactly as the model saw and
    /// wrote it, token marks included: what is trained on is then what the model said.
    bool renders_back = false;
};

/// `prompt`: the text that format.render() gave for `conversation` with `options` and
/// add_generation_prompt. `answer`: what the model wrote behind it, without the token that ended
/// its turn. Reasoning goes into reasoning_content, also where it was cut before its end.
ReadAnswer read_answer(const ChatFormat& format,
                       const Conversation& conversation,
                       const RenderOptions& options,
                       std::string_view prompt,
                       std::string_view answer);

/// render() of a conversation whose last answer was cut: text and spans end with what the model
/// wrote, before the marks that the format would close it with. An answer that calls tools is
/// complete and stays as it is.
Rendered render_cut_answer(const ChatFormat& format,
                           const Conversation& conversation,
                           const RenderOptions& options);

}  // namespace dflash::data
