// SPDX-License-Identifier: Apache-2.0
// The format of Qwen3 (hybrid thinking). Source: the template of Qwen3, as kept in the wheel trl
// 1.16.0 (trl/chat_templates/qwen3.jinja).
//
// Think blocks stay only after the last user message that is a question of the user's own (L; one
// that is wholly a tool response does not count): servers drop the reasoning of earlier turns. A
// last turn without reasoning gets an empty block, which a server's prompt for non-thinking mode
// ends with; so the model has not written it, and it is not trained.
#include "chat_families.hpp"
#include "python_text.hpp"
#include "rendered_text.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>

#include <fmt/format.h>

namespace dflash::data {

namespace {

constexpr std::string_view kThinkOpen = "<think>";
constexpr std::string_view kThinkClose = "</think>";
constexpr std::string_view kResponseOpen = "<tool_response>";
constexpr std::string_view kResponseClose = "</tool_response>";

// An assistant message taken apart as the template does.
struct Answer {
    std::string_view reasoning;
    std::string_view content;
    bool block_in_content = false;  // the row wrote the think block itself
    bool loses_text = false;        // text before the block, or between two of them
};

Answer take_apart(const Message& message) {
    Answer answer;
    answer.content = message.content;
    if (message.reasoning_content) {
        answer.reasoning = *message.reasoning_content;
        return answer;
    }
    const std::string_view content = message.content;
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

// Index L of the file's head: the last index if there is no such message.
std::size_t last_question(const std::vector<Message>& messages) {
    for (std::size_t i = messages.size(); i-- > 0;) {
        const Message& message = messages[i];
        const bool is_response =
            message.content.starts_with(kResponseOpen) && message.content.ends_with(kResponseClose);
        if (message.role == "user" && !message.content_is_null && !is_response) {
            return i;
        }
    }
    return messages.empty() ? 0 : messages.size() - 1;
}

void write_system(RenderedText& out, const Conversation& conversation) {
    const auto& messages = conversation.messages;
    const bool has_system = !messages.empty() && messages.front().role == "system";
    if (!conversation.tools) {
        if (has_system) {
            out << "<|im_start|>system\n" << messages.front().content << "<|im_end|>\n";
        }
        return;
    }
    out << "<|im_start|>system\n";
    if (has_system) {
        out << messages.front().content << "\n\n";
    }
    out << "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
           "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
    for (const io::Json& tool : conversation.tools->items()) {
        out << "\n" << python_json(tool);
    }
    out << "\n</tools>\n\nFor each function call, return a json object with function name and "
           "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
           "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n"
           "</tool_call><|im_end|>\n";
}

void write_tool_calls(RenderedText& out, const std::vector<ToolCall>& calls, bool after_content) {
    for (const ToolCall& call : calls) {
        if (after_content) {
            out << "\n";
        }
        out << "<tool_call>\n{\"name\": \"" << call.name << "\", \"arguments\": "
            << (call.arguments.is_string() ? call.arguments.as_string()
                                           : python_json(call.arguments))
            << "}\n</tool_call>";
        after_content = true;
    }
}

// `may_think`: the message stands after L.
void write_answer(RenderedText& out,
                  const Message& message,
                  bool may_think,
                  bool is_last,
                  const RenderOptions& options) {
    const Answer answer = take_apart(message);
    const bool has_block = may_think && (is_last || !answer.reasoning.empty());
    const std::string_view reasoning = strip_newlines(answer.reasoning);
    out.left_out().text += answer.loses_text ? 1 : 0;
    out.left_out().reasoning += !has_block && !reasoning.empty() ? 1 : 0;

    out << "<|im_start|>assistant\n";
    out.begin_span();
    if (has_block) {
        out << "<think>\n" << reasoning << "\n</think>\n\n";
        const bool model_wrote_block =
            !reasoning.empty() || (answer.block_in_content && options.enable_thinking != false);
        if (!model_wrote_block) {
            out.begin_span();
        }
        out << strip_leading_newlines(answer.content);
    } else {
        out << answer.content;
    }
    write_tool_calls(out, message.tool_calls, /*after_content=*/!answer.content.empty());
    out << "<|im_end|>";
    out.end_span(message.train);
    out << "\n";
}

class Qwen3Format final : public ChatFormat {
  public:
    std::string_view name() const override { return "qwen3"; }

    Rendered render(const Conversation& conversation, const RenderOptions& options) const override {
        RenderedText out;
        const auto& messages = conversation.messages;
        const std::size_t question = last_question(messages);
        write_system(out, conversation);
        for (std::size_t i = 0; i < messages.size(); ++i) {
            const Message& message = messages[i];
            const bool is_last = i + 1 == messages.size();
            if (message.role == "system" && i == 0) {
                continue;
            }
            if (message.role == "user" || message.role == "system") {
                out << "<|im_start|>" << message.role << "\n" << message.content << "<|im_end|>\n";
            } else if (message.role == "assistant") {
                write_answer(out, message, /*may_think=*/i > question, is_last, options);
            } else if (message.role == "tool") {
                // Adjacent tool messages are one user turn.
                const bool first_of_turn = i == 0 || messages[i - 1].role != "tool";
                const bool last_of_turn = is_last || messages[i + 1].role != "tool";
                out << (first_of_turn ? "<|im_start|>user" : "") << "\n<tool_response>\n"
                    << message.content << "\n</tool_response>"
                    << (last_of_turn ? "<|im_end|>\n" : "");
            } else {
                // The template would leave the message out without a word.
                throw Error(ErrorKind::Data,
                            {.what = fmt::format("messages[{}].role is {}, which the chat format "
                                                 "qwen3 has no form for",
                                                 i,
                                                 quote(message.role, 40)),
                             .where = {},
                             .cause = {},
                             .hint = {}});
            }
        }
        if (options.add_generation_prompt) {
            out << "<|im_start|>assistant\n"
                << (options.enable_thinking == false ? "<think>\n\n</think>\n\n" : "");
        }
        return out.take();
    }

    std::vector<std::string> used_tokens() const override {
        return {"<|im_start|>",
                "<|im_end|>",
                "<think>",
                "</think>",
                "<tool_call>",
                "</tool_call>",
                "<tool_response>",
                "</tool_response>"};
    }

    std::vector<std::string> turn_tokens() const override { return {"<|im_start|>", "<|im_end|>"}; }

    std::optional<bool> served_thinking(const Conversation& conversation) const override {
        if (conversation.is_prompt()) {
            return std::nullopt;
        }
        const Answer answer = take_apart(conversation.messages.back());
        return answer.block_in_content || !strip_newlines(answer.reasoning).empty();
    }
};

}  // namespace

std::unique_ptr<ChatFormat> make_qwen3_format() {
    return std::make_unique<Qwen3Format>();
}

// The later generations of the family write calls as <function=...>; Qwen3-2507 has no switch for
// thinking; Qwen2.5 has no think blocks.
bool is_qwen3_template(std::string_view chat_template) {
    const auto has = [&](std::string_view part) { return chat_template.find(part) != part.npos; };
    return has("<|im_start|>") && has("enable_thinking") && has("reasoning_content") &&
           has("last_query_index") && has("<args-json-object>") && !has("<function=");
}

}  // namespace dflash::data
