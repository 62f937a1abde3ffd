// SPDX-License-Identifier: Apache-2.0
#include "think_block.hpp"

#include "python_text.hpp"

namespace dflash::data {

Answer take_apart(const std::optional<std::string>& reasoning, std::string_view content) {
    Answer answer;
    answer.content = content;
    if (reasoning) {
        answer.reasoning = *reasoning;
        return answer;
    }
    const std::size_t first_close = content.find(kThinkClose);
    if (first_close == std::string_view::npos) {
        return answer;
    }
    answer.block_in_content = true;
    const std::string_view before = strip_trailing_newlines(content.substr(0, first_close));
    const std::size_t open = before.rfind(kThinkOpen);
    const bool has_open = open != std::string_view::npos;
    answer.reasoning =
        strip_leading_newlines(has_open ? before.substr(open + kThinkOpen.size()) : before);
    const std::size_t last_close = content.rfind(kThinkClose);
    answer.content = strip_leading_newlines(content.substr(last_close + kThinkClose.size()));
    answer.loses_text =
        first_close != last_close || (has_open && !python_strip(before.substr(0, open)).empty());
    return answer;
}

std::optional<std::size_t> last_question(const std::vector<Message>& messages, bool trimmed) {
    for (std::size_t i = messages.size(); i-- > 0;) {
        const Message& message = messages[i];
        const std::string_view content =
            trimmed ? python_strip(message.content) : std::string_view(message.content);
        // Templates that do not trim ask for a text.
        const bool is_text = trimmed || !message.content_is_null;
        if (message.role == "user" && is_text &&
            !(content.starts_with("<tool_response>") && content.ends_with("</tool_response>"))) {
            return i;
        }
    }
    return std::nullopt;
}

}  // namespace dflash::data
