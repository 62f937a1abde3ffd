// SPDX-License-Identifier: Apache-2.0
// Reasoning between <think> and </think>, as the templates of Qwen3 and later take it out of an
// assistant's content.
#pragma once

#include <dflash/data/conversation.hpp>

#include <optional>
#include <string_view>

namespace dflash::data {

inline constexpr std::string_view kThinkOpen = "<think>";
inline constexpr std::string_view kThinkClose = "</think>";
inline constexpr std::string_view kEmptyThinkBlock = "<think>\n\n</think>\n\n";

/// An assistant message taken apart. Views into the message.
struct Answer {
    std::string_view reasoning;
    std::string_view content;
    bool block_in_content = false;  ///< the row wrote the think block itself
    bool loses_text = false;        ///< text before the block, or between two of them
};

/// `reasoning_content` and content, if the message has the first. Otherwise, if `content` (the
/// message's, trimmed or not) holds </think>: what stands before the first one, and after the last
/// <think> before that; and what follows the last </think>. Line feeds beside the marks are off.
Answer take_apart(const std::optional<std::string>& reasoning, std::string_view content);

/// Index of the last user message that is a question, or nothing: one whose content both starts
/// with <tool_response> and ends with </tool_response> is an answer of a tool. `trimmed`: the
/// content is judged without white space around it.
std::optional<std::size_t> last_question(const std::vector<Message>& messages, bool trimmed);

}  // namespace dflash::data
