// SPDX-License-Identifier: Apache-2.0
#include "rendered_text.hpp"

#include <dflash/core/error.hpp>

#include <algorithm>
#include <fmt/format.h>

namespace dflash::data {

bool is_trained(const Conversation& conversation, std::size_t i, const RenderOptions& options) {
    const auto& messages = conversation.messages;
    const Message& message = messages[i];
    if (message.role != "assistant" || !message.train) {
        return false;
    }
    if (!options.train_on_tool_calls && !message.tool_calls.empty()) {
        return false;
    }
    return !options.last_turn_only ||
           std::none_of(messages.begin() + static_cast<std::ptrdiff_t>(i),
                        messages.end(),
                        [](const Message& later) { return later.role == "user"; });
}

void refuse_message(std::size_t i, std::string_view what) {
    throw Error(
        ErrorKind::Data,
        {.what = fmt::format("messages[{}] {}", i, what), .where = {}, .cause = {}, .hint = {}});
}

}  // namespace dflash::data
