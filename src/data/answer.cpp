// SPDX-License-Identifier: Apache-2.0
#include "think_block.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/data/answer.hpp>

#include <string>
#include <utility>
#include <vector>

namespace dflash::data {
namespace {

Message make_answer(std::optional<std::string> reasoning, std::string content) {
    Message message;
    message.role = "assistant";
    message.reasoning_content = std::move(reasoning);
    message.content = std::move(content);
    return message;
}

std::string_view without_newlines(std::string_view text) {
    const std::size_t begin = text.find_first_not_of('\n');
    if (begin == std::string_view::npos) {
        return {};
    }
    return text.substr(begin, text.find_last_not_of('\n') - begin + 1);
}

// The readings that the text allows, the likeliest first.
std::vector<Message> readings(std::string_view prompt, std::string_view answer) {
    std::vector<Message> messages;
    const bool opened_by_prompt = prompt.ends_with("<think>\n");
    std::string_view rest = answer;
    const bool opened = opened_by_prompt || rest.starts_with(kThinkOpen);
    if (rest.starts_with(kThinkOpen)) {
        rest.remove_prefix(kThinkOpen.size());
    }
    const std::size_t close = rest.find(kThinkClose);
    if (opened && close != std::string_view::npos) {
        std::string_view content = rest.substr(close + kThinkClose.size());
        const std::string reasoning(without_newlines(rest.substr(0, close)));
        messages.push_back(make_answer(reasoning,
                                       std::string(content.substr(std::min(
                                           content.find_first_not_of('\n'), content.size())))));
    } else if (opened) {
        messages.push_back(make_answer(std::string(without_newlines(rest)), ""));
    }
    messages.push_back(make_answer(std::nullopt, std::string(answer)));
    return messages;
}

bool renders_as(const ChatFormat& format,
                Conversation conversation,
                Message message,
                RenderOptions options,
                const std::string& expected) {
    conversation.messages.push_back(std::move(message));
    conversation.later_turns.clear();
    options.add_generation_prompt = false;
    std::string text;
    try {
        text = format.render(conversation, options).text;
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::Data) {
            throw;
        }
        return false;
    }
    if (!text.starts_with(expected)) {
        return false;
    }
    for (const std::string& end : format.text_marks().turn_ends) {
        if (std::string_view(text).substr(expected.size()).starts_with(end)) {
            return true;
        }
    }
    return false;
}

}  // namespace

ReadAnswer read_answer(const ChatFormat& format,
                       const Conversation& conversation,
                       const RenderOptions& options,
                       std::string_view prompt,
                       std::string_view answer) {
    const std::string expected = std::string(prompt) + std::string(answer);
    std::vector<Message> messages = readings(prompt, answer);
    for (Message& message : messages) {
        if (renders_as(format, conversation, message, options, expected)) {
            return {.message = std::move(message), .renders_back = true};
        }
    }
    return {.message = std::move(messages.front()), .renders_back = false};
}

}  // namespace dflash::data
