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
#include "think_block.hpp"
#include "tool_text.hpp"

#include <dflash/core/text.hpp>

#include <fmt/format.h>

namespace dflash::data {

namespace {

void write_system(RenderedText& out, const Conversation& conversation) {
    const auto& messages = conversation.messages;
    const bool has_system = !messages.empty() && messages.front().role == "system";
    if (!conversation.tools && !has_system) {
        return;
    }
    out << "<|im_start|>system\n";
    if (has_system) {
        out << messages.front().content << (conversation.tools ? "\n\n" : "<|im_end|>\n");
    }
    if (conversation.tools) {
        write_json_tools(out, *conversation.tools);
    }
}

void write_tool_calls(RenderedText& out, const std::vector<ToolCall>& calls, bool after_content) {
    for (const ToolCall& call : calls) {
        out << (after_content ? "\n" : "");
        // Text is written as it stands.
        write_json_call(
            out,
            call,
            call.arguments.is_string() ? call.arguments.as_string() : python_json(call.arguments));
        after_content = true;
    }
}

// `may_think`: the message stands after L.
void write_answer(RenderedText& out,
                  const Message& message,
                  bool may_think,
                  bool is_last,
                  bool trained,
                  const RenderOptions& options) {
    const Answer answer = take_apart(message.reasoning_content, message.content);
    const bool has_block = may_think && (is_last || !answer.reasoning.empty());
    const std::string_view reasoning = strip_newlines(answer.reasoning);
    out.left_out().text += answer.loses_text ? 1 : 0;
    out.left_out().reasoning += !has_block && !reasoning.empty() ? 1 : 0;

    out << "<|im_start|>assistant\n";
    out.begin_span();
    if (has_block) {
        out << kThinkOpen << "\n" << reasoning << "\n" << kThinkClose << "\n\n";
        const bool model_wrote_block =
            !reasoning.empty() || (answer.block_in_content && options.enable_thinking != false);
        if (!model_wrote_block || !options.train_on_thinking) {
            out.begin_span();
        }
        out << strip_leading_newlines(answer.content);
    } else {
        out << answer.content;
    }
    write_tool_calls(out, message.tool_calls, /*after_content=*/!answer.content.empty());
    out << "<|im_end|>";
    out.end_span(trained);
    out << "\n";
}

class Qwen3Format final : public ChatFormat {
  public:
    std::string_view name() const override { return "qwen3"; }

    Rendered render(const Conversation& conversation, const RenderOptions& options) const override {
        RenderedText out;
        const auto& messages = conversation.messages;
        // The template takes the last index if no message is a question.
        const std::size_t question =
            last_question(messages, /*trimmed=*/false).value_or(messages.size());
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
                write_answer(out,
                             message,
                             /*may_think=*/i > question,
                             is_last,
                             is_trained(conversation, i, options),
                             options);
            } else if (message.role == "tool") {
                write_tool_response(out, messages, i, message.content);
            } else {
                // The template would leave the message out without a word.
                refuse_message(i,
                               fmt::format("is of role {}, which the chat format qwen3 has no "
                                           "form for",
                                           quote(message.role, 40)));
            }
        }
        if (options.add_generation_prompt) {
            out << "<|im_start|>assistant\n"
                << (options.enable_thinking == false ? kEmptyThinkBlock : "");
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
        const Message& last = conversation.messages.back();
        const Answer answer = take_apart(last.reasoning_content, last.content);
        return answer.block_in_content || !strip_newlines(answer.reasoning).empty();
    }

    TextMarks text_marks() const override {
        return {.assistant_header = "<|im_start|>assistant\n",
                .prompt_blocks = {std::string(kEmptyThinkBlock)},
                .turn_ends = {"<|im_end|>"}};
    }
};

}  // namespace

std::unique_ptr<ChatFormat> make_qwen3_format() {
    return std::make_unique<Qwen3Format>();
}

}  // namespace dflash::data
