// SPDX-License-Identifier: Apache-2.0
// The format of gpt-oss (harmony). Source: the template in the wheel trl 1.16.0
// (trl/chat_templates/gptoss.jinja), without its built-in tools and its model_identity, which only
// a request can set.
//
// A server's prompt ends with <|start|>assistant, so the model writes the channels, too: the
// analysis, the header of its final message, and <|return|>. In earlier turns the template closes
// with <|end|> what the model had closed with <|return|>; that token is not trained.
#include "chat_families.hpp"
#include "python_text.hpp"
#include "rendered_text.hpp"
#include "tool_text.hpp"
#include "typescript_tools.hpp"

#include <algorithm>

namespace dflash::data {

namespace {

constexpr std::string_view kTurnStart = "<|start|>assistant";

// The template writes the day of rendering; a fixed one keeps a run reproducible. It is the day on
// which the models came out.
constexpr std::string_view kDefaultDate = "2025-08-05";

void write_system(RenderedText& out,
                  const Conversation& conversation,
                  const RenderOptions& options) {
    out << "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
           "Knowledge cutoff: 2024-06\nCurrent date: "
        << (options.date ? std::string_view(*options.date) : kDefaultDate)
        << "\n\nReasoning: " << options.reasoning_effort.value_or("medium")
        << "\n\n# Valid channels: analysis, commentary, final. Channel must be included for every "
           "message."
        << (conversation.tools
                ? "\nCalls to these tools must go to the commentary channel: 'functions'."
                : "")
        << "<|end|>";
}

void write_developer(RenderedText& out, std::string_view content, const io::Json* tools) {
    if (content.empty() && tools == nullptr) {
        return;
    }
    out << "<|start|>developer<|message|>";
    if (!content.empty()) {
        out << "# Instructions\n\n" << content << "\n\n";
    }
    if (tools != nullptr) {
        out << "# Tools\n\n" << typescript_tools(*tools);
    }
    out << "<|end|>";
}

void write_analysis(RenderedText& out, std::string_view reasoning, const RenderOptions& options) {
    out << "<|channel|>analysis<|message|>" << reasoning << "<|end|>" << kTurnStart;
    if (!options.train_on_thinking) {
        out.begin_span();
    }
}

bool holds_channels(std::string_view text) {
    return text.find("<|channel|>analysis<|message|>") != std::string_view::npos ||
           text.find("<|channel|>final<|message|>") != std::string_view::npos;
}

// A message that calls a tool. `reasons`: no final answer follows, so its reasoning is kept.
void write_call(RenderedText& out,
                std::size_t i,
                const Message& message,
                bool reasons,
                const RenderOptions& options) {
    const std::string reasoning = message.reasoning_content.value_or("");
    if (!message.content.empty() && !reasoning.empty()) {
        refuse_message(i,
                       "has content, reasoning and a tool call; the chat format gpt-oss has a form "
                       "for one of the first two beside a call");
    }
    const std::string& analysis = message.content.empty() ? reasoning : message.content;
    if (!analysis.empty() && reasons) {
        write_analysis(out, analysis, options);
    }
    out.left_out().reasoning += !reasoning.empty() && !reasons ? 1 : 0;
    const bool loses_content = !message.content.empty() && !reasons;
    out.left_out().text += loses_content || message.tool_calls.size() > 1 ? 1 : 0;
    const ToolCall& call = message.tool_calls.front();
    out << " to=functions." << call.name << "<|channel|>commentary json<|message|>"
        << python_json(arguments_object(call)) << "<|call|>";
}

void write_answer(RenderedText& out,
                  const Conversation& conversation,
                  std::size_t i,
                  const RenderOptions& options) {
    const auto& messages = conversation.messages;
    const Message& message = messages[i];
    if (holds_channels(message.content) || holds_channels(message.reasoning_content.value_or(""))) {
        refuse_message(i, "holds marks of channels; reasoning belongs into reasoning_content");
    }
    const bool trained = is_trained(conversation, i, options);
    out << kTurnStart;
    out.begin_span();
    if (!message.tool_calls.empty()) {
        const bool reasons = std::none_of(
            messages.begin() + static_cast<std::ptrdiff_t>(i) + 1,
            messages.end(),
            [](const Message& m) { return m.role == "assistant" && m.tool_calls.empty(); });
        write_call(out, i, message, reasons, options);
        out.end_span(trained);
        return;
    }
    const bool ends_row = i + 1 == messages.size() && !options.add_generation_prompt;
    if (message.reasoning_content && ends_row) {
        write_analysis(out, *message.reasoning_content, options);
    }
    out.left_out().reasoning +=
        !ends_row && !message.reasoning_content.value_or("").empty() ? 1 : 0;
    out << "<|channel|>final<|message|>" << message.content;
    if (ends_row) {
        out << "<|return|>";
    }
    out.end_span(trained);
    out << (ends_row ? "" : "<|end|>");
}

class GptOssFormat final : public ChatFormat {
  public:
    std::string_view name() const override { return "gpt-oss"; }

    Rendered render(const Conversation& conversation, const RenderOptions& options) const override {
        RenderedText out;
        const auto& messages = conversation.messages;
        const bool has_system = !messages.empty() && messages.front().role == "system";
        write_system(out, conversation, options);
        write_developer(out,
                        has_system ? std::string_view(messages.front().content) : "",
                        conversation.tools ? &*conversation.tools : nullptr);
        const ToolCall* last_call = nullptr;
        for (std::size_t i = has_system ? 1 : 0; i < messages.size(); ++i) {
            const Message& message = messages[i];
            if (message.role == "assistant") {
                write_answer(out, conversation, i, options);
                const bool ends_row = i + 1 == messages.size() && !options.add_generation_prompt;
                if (!message.tool_calls.empty()) {
                    last_call = &message.tool_calls.front();
                } else if (!ends_row) {
                    last_call = nullptr;
                }
            } else if (message.role == "tool") {
                if (last_call == nullptr) {
                    refuse_message(i, "is of role tool, with no call before it");
                }
                out << "<|start|>functions." << last_call->name
                    << " to=assistant<|channel|>commentary<|message|>"
                    << python_json(io::Json::string(message.content)) << "<|end|>";
            } else if (message.role == "user") {
                out << "<|start|>user<|message|>" << message.content << "<|end|>";
            } else {
                // A system message that is not the first.
                out.left_out().text += 1;
            }
        }
        if (options.add_generation_prompt) {
            out << kTurnStart;
        }
        return out.take();
    }

    std::vector<std::string> used_tokens() const override {
        return {"<|start|>",
                "<|end|>",
                "<|message|>",
                "<|channel|>",
                "<|constrain|>",
                "<|call|>",
                "<|return|>"};
    }

    std::vector<std::string> turn_tokens() const override {
        return {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"};
    }

    std::optional<bool> served_thinking(const Conversation& /*conversation*/) const override {
        return std::nullopt;
    }

    TextMarks text_marks() const override {
        return {.assistant_header = std::string(kTurnStart),
                .prompt_blocks = {},
                .turn_ends = {"<|end|>", "<|call|>", "<|return|>"}};
    }
};

}  // namespace

std::unique_ptr<ChatFormat> make_gpt_oss_format() {
    return std::make_unique<GptOssFormat>();
}

}  // namespace dflash::data
