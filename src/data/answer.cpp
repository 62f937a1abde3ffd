// SPDX-License-Identifier: Apache-2.0
#include "think_block.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/data/answer.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

// The conversation with the message as it is trained; nothing if the format refuses it.
std::optional<std::string> text_with(const ChatFormat& format,
                                     Conversation conversation,
                                     Message message,
                                     RenderOptions options,
                                     bool cut) {
    conversation.messages.push_back(std::move(message));
    conversation.later_turns.clear();
    options.add_generation_prompt = false;
    try {
        return cut ? render_cut_answer(format, conversation, options).text
                   : format.render(conversation, options).text;
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::Data) {
            throw;
        }
        return std::nullopt;
    }
}

// Whether the text is `expected`, with the end of a turn behind it unless that was cut off.
bool is_text(std::string_view text,
             const ChatFormat& format,
             const std::string& expected,
             bool cut) {
    if (cut) {
        return text == expected;
    }
    const std::vector<std::string> ends = format.text_marks().turn_ends;
    return text.starts_with(expected) &&
           std::any_of(ends.begin(), ends.end(), [&](const std::string& end) {
               return text.substr(expected.size()).starts_with(end);
           });
}

bool has_tokens(const std::vector<TokenId>& ids, const TokenText& prompt, const TokenText& answer) {
    const std::size_t begin = prompt.tokens.size();
    return ids.size() >= begin + answer.tokens.size() &&
           std::equal(prompt.tokens.begin(), prompt.tokens.end(), ids.begin()) &&
           std::equal(answer.tokens.begin(),
                      answer.tokens.end(),
                      ids.begin() + static_cast<std::ptrdiff_t>(begin));
}

// Where `text`, the conversation rendered, differs from what it is if the last message's `part`
// goes on; its end if the part is not in the text. At most one of two letters is what stands there.
template <class Part>
std::size_t end_of(Part part,
                   const std::string& text,
                   const ChatFormat& format,
                   const Conversation& conversation,
                   const RenderOptions& options) {
    std::size_t end = text.size();
    for (const char next : {'x', 'y'}) {
        Conversation longer = conversation;
        part(longer.messages.back()) += next;
        const std::string other = format.render(longer, options).text;
        const auto parted =
            std::mismatch(text.begin(), text.end(), other.begin(), other.end()).first;
        end = std::min(end, static_cast<std::size_t>(parted - text.begin()));
    }
    return end;
}

}  // namespace

Rendered render_cut_answer(const ChatFormat& format,
                           const Conversation& conversation,
                           const RenderOptions& options) {
    Rendered rendered = format.render(conversation, options);
    const Message& answer = conversation.messages.back();
    if (!answer.tool_calls.empty()) {
        return rendered;
    }
    std::string& text = rendered.text;
    std::size_t end = text.size();
    if (answer.content.empty() && answer.reasoning_content) {
        const auto thought = [](Message& m) -> std::string& { return *m.reasoning_content; };
        end = end_of(thought, text, format, conversation, options);
    }
    if (end == text.size()) {
        const auto content = [](Message& m) -> std::string& { return m.content; };
        end = end_of(content, text, format, conversation, options);
    }
    text.resize(end);
    const auto text_end = static_cast<std::int64_t>(end);
    std::erase_if(rendered.spans, [&](const ByteRange& span) { return span.begin >= text_end; });
    for (ByteRange& span : rendered.spans) {
        span.end = std::min(span.end, text_end);
    }
    return rendered;
}

ReadAnswer read_answer(const ChatFormat& format,
                       const Tokenizer& tokenizer,
                       const Conversation& conversation,
                       const RenderOptions& options,
                       const TokenText& prompt,
                       const TokenText& answer,
                       bool cut) {
    std::vector<Message> messages = readings(prompt.text, answer.text);
    for (Message& message : messages) {
        const std::optional<std::string> text =
            text_with(format, conversation, message, options, cut);
        if (text && is_text(*text, format, prompt.text + answer.text, cut)) {
            return {.message = std::move(message),
                    .comes_back = has_tokens(tokenizer.encode(*text).ids, prompt, answer)};
        }
    }
    return {.message = std::move(messages.front()), .comes_back = false};
}

std::span<const TokenId> without_cut_character(const Tokenizer& tokenizer,
                                               std::span<const TokenId> tokens) {
    constexpr std::string_view kBroken = "\xef\xbf\xbd";  // U+FFFD
    constexpr std::size_t kMostTokens = 3;                // one character has at most four bytes
    for (std::size_t dropped = 0; dropped <= std::min(kMostTokens, tokens.size()); ++dropped) {
        const std::span<const TokenId> kept = tokens.first(tokens.size() - dropped);
        if (!tokenizer.decode(kept).ends_with(kBroken)) {
            return kept;
        }
    }
    return tokens;
}

}  // namespace dflash::data
