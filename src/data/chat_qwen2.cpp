// SPDX-License-Identifier: Apache-2.0
// The formats of Qwen2.5-Instruct and of Qwen3-Instruct-2507: ChatML with tools, without think
// blocks. Source: the templates in the wheel trl 1.16.0 (trl/chat_templates/qwen2_5.jinja,
// qwen3_instruct_2507.jinja). Neither has a form for reasoning_content; <think> in content is
// content.
#include "chat_families.hpp"
#include "python_text.hpp"
#include "rendered_text.hpp"
#include "tool_text.hpp"

#include <dflash/core/text.hpp>

#include <fmt/format.h>

namespace dflash::data {

namespace {

struct Generation {
    std::string_view name;
    std::string_view default_system;  // empty: none
    bool arguments_as_given;          // text as it stands; otherwise always an object
};

constexpr Generation kQwen25 = {
    .name = "qwen2.5",
    .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    .arguments_as_given = false};
constexpr Generation kQwen3Instruct2507 = {
    .name = "qwen3-2507", .default_system = "", .arguments_as_given = true};

class Qwen2Format final : public ChatFormat {
  public:
    explicit Qwen2Format(const Generation& generation) : generation_(generation) {}

    std::string_view name() const override { return generation_.name; }

    Rendered render(const Conversation& conversation, const RenderOptions& options) const override {
        RenderedText out;
        const auto& messages = conversation.messages;
        write_system(out, conversation);
        for (std::size_t i = 0; i < messages.size(); ++i) {
            const Message& message = messages[i];
            if (message.role == "system" && i == 0) {
                continue;
            }
            if (message.role == "user" || message.role == "system") {
                out << "<|im_start|>" << message.role << "\n" << message.content << "<|im_end|>\n";
            } else if (message.role == "assistant") {
                write_answer(out, message, is_trained(conversation, i, options));
            } else if (message.role == "tool") {
                write_tool_response(out, messages, i, message.content);
            } else {
                refuse_message(i,
                               fmt::format("is of role {}, which the chat format {} has no form "
                                           "for",
                                           quote(message.role, 40),
                                           name()));
            }
        }
        if (options.add_generation_prompt) {
            out << "<|im_start|>assistant\n";
        }
        return out.take();
    }

    std::vector<std::string> used_tokens() const override {
        return {"<|im_start|>",
                "<|im_end|>",
                "<tool_call>",
                "</tool_call>",
                "<tool_response>",
                "</tool_response>"};
    }

    std::vector<std::string> turn_tokens() const override { return {"<|im_start|>", "<|im_end|>"}; }

    std::optional<bool> served_thinking(const Conversation& /*conversation*/) const override {
        return std::nullopt;
    }

    TextMarks text_marks() const override {
        return {.assistant_header = "<|im_start|>assistant\n",
                .prompt_blocks = {},
                .turn_ends = {"<|im_end|>"}};
    }

  private:
    void write_system(RenderedText& out, const Conversation& conversation) const {
        const auto& messages = conversation.messages;
        const bool has_system = !messages.empty() && messages.front().role == "system";
        const std::string_view system =
            has_system ? std::string_view(messages.front().content) : generation_.default_system;
        const bool writes_system = has_system || !system.empty();
        if (!writes_system && !conversation.tools) {
            return;
        }
        out << "<|im_start|>system\n";
        if (writes_system) {
            out << system << (conversation.tools ? "\n\n" : "<|im_end|>\n");
        }
        if (conversation.tools) {
            write_json_tools(out, *conversation.tools);
        }
    }

    void write_answer(RenderedText& out, const Message& message, bool trained) const {
        out.left_out().reasoning += message.reasoning_content.value_or("").empty() ? 0 : 1;
        out << "<|im_start|>assistant\n";
        out.begin_span();
        out << message.content;
        bool is_first = message.content.empty();
        for (const ToolCall& call : message.tool_calls) {
            out << (is_first ? "" : "\n");
            is_first = false;
            write_json_call(out,
                            call,
                            generation_.arguments_as_given && call.arguments.is_string()
                                ? call.arguments.as_string()
                                : python_json(arguments_object(call)));
        }
        out << "<|im_end|>";
        out.end_span(trained);
        out << "\n";
    }

    Generation generation_;
};

}  // namespace

std::unique_ptr<ChatFormat> make_qwen25_format() {
    return std::make_unique<Qwen2Format>(kQwen25);
}

std::unique_ptr<ChatFormat> make_qwen3_instruct_2507_format() {
    return std::make_unique<Qwen2Format>(kQwen3Instruct2507);
}

}  // namespace dflash::data
