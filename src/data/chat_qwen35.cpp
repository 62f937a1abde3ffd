// SPDX-License-Identifier: Apache-2.0
// The formats of Qwen3.5, 3.6 and 3.8. Source: the templates in the wheel trl 1.16.0
// (trl/chat_templates/qwen3_5_think.jinja, qwen3_5_nothink.jinja, qwen3_6.jinja, qwen3_8.jinja).
//
// As in Qwen3, think blocks stand after the last question only (3.8: in all turns), but there every
// answer has one, if only an empty one, and the server's prompt opens it. So what the model writes
// begins inside of the block, or behind it where the block is empty: a server asks for such an
// answer by closing the block itself.
#include "chat_families.hpp"
#include "python_text.hpp"
#include "rendered_text.hpp"
#include "think_block.hpp"
#include "tool_text.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>

#include <fmt/format.h>

namespace dflash::data {

namespace {

struct Generation {
    std::string_view name;
    bool thinks_by_default = true;  // the block is open unless enable_thinking is false
    bool json_scalars = true;       // true and null in arguments as JSON, not as Python prints them
    bool can_preserve = true;       // knows preserve_thinking ...
    bool preserves_by_default = false;
    bool has_effort = false;  // a sentence on reasoning effort begins the system message
};

constexpr Generation kQwen35 = {.name = "qwen3.5", .json_scalars = false, .can_preserve = false};
// 2B and smaller.
constexpr Generation kQwen35Small = {.name = "qwen3.5-small",
                                     .thinks_by_default = false,
                                     .json_scalars = false,
                                     .can_preserve = false};
constexpr Generation kQwen36 = {.name = "qwen3.6"};
constexpr Generation kQwen38 = {
    .name = "qwen3.8", .preserves_by_default = true, .has_effort = true};

constexpr std::string_view kToolInstructions =
    "\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n"
    "</parameter>\n<parameter=example_parameter_2>\n"
    "This is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block "
    "must be nested within <tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the "
    "function call, but NOT after\n"
    "- If there is no function call available, answer the question like normal with your current "
    "knowledge and do not tell the user about function calls\n</IMPORTANT>";

// The sentence on reasoning effort; empty for medium.
std::string_view effort_sentence(const RenderOptions& options) {
    if (options.enable_thinking == false) {
        return "";
    }
    const std::string effort = options.reasoning_effort.value_or("xhigh");
    if (effort == "xhigh") {
        return "Reasoning effort is set to xhigh. Please think carefully through the task, "
               "validate key assumptions, consider plausible alternatives, and prioritize "
               "correctness, consistency, and clarity in the final answer.";
    }
    if (effort == "low") {
        return "Reasoning effort is set to low. Keep your thinking brief and focused, moving "
               "directly to the conclusion without unnecessary elaboration.";
    }
    if (effort != "medium") {
        throw Error(ErrorKind::Data,
                    {.what = fmt::format("reasoning effort is {}, expected one of low, medium, "
                                         "xhigh",
                                         quote(effort, 40)),
                     .where = {},
                     .cause = {},
                     .hint = "Set data.reasoning_effort"});
    }
    return "";
}

class Qwen35Format final : public ChatFormat {
  public:
    explicit Qwen35Format(const Generation& generation) : generation_(generation) {}

    std::string_view name() const override { return generation_.name; }

    Rendered render(const Conversation& conversation, const RenderOptions& options) const override {
        RenderedText out;
        const auto& messages = conversation.messages;
        const std::optional<std::size_t> question = last_question(messages, /*trimmed=*/true);
        if (!question) {
            throw Error(ErrorKind::Data,
                        {.what = fmt::format("no user message that is a question, which the chat "
                                             "format {} needs",
                                             name()),
                         .where = {},
                         .cause = {},
                         .hint = {}});
        }
        const bool preserve = generation_.can_preserve &&
                              options.preserve_thinking.value_or(generation_.preserves_by_default);
        write_system(out, conversation, options);
        for (std::size_t i = 0; i < messages.size(); ++i) {
            const Message& message = messages[i];
            if (message.role == "system") {
                if (i > 0) {
                    refuse_message(i, "is a system message, which may only be the first one");
                }
            } else if (message.role == "user") {
                out << "<|im_start|>user\n" << python_strip(message.content) << "<|im_end|>\n";
            } else if (message.role == "assistant") {
                write_answer(out,
                             message,
                             /*has_block=*/preserve || i > *question,
                             is_trained(conversation, i, options),
                             options);
            } else if (message.role == "tool") {
                write_tool_response(
                    out, messages, i, python_strip(message.content), /*opens_first=*/false);
            } else {
                refuse_message(i,
                               fmt::format("is of role {}, which the chat format {} has no form "
                                           "for",
                                           quote(message.role, 40),
                                           name()));
            }
        }
        if (options.add_generation_prompt) {
            const bool thinks = options.enable_thinking.value_or(generation_.thinks_by_default);
            out << "<|im_start|>assistant\n" << (thinks ? "<think>\n" : kEmptyThinkBlock);
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
        return !take_apart(conversation.messages.back()).reasoning.empty();
    }

    TextMarks text_marks() const override {
        return {.assistant_header = "<|im_start|>assistant\n",
                .prompt_blocks = {std::string(kEmptyThinkBlock), "<think>\n"},
                .turn_ends = {"<|im_end|>"}};
    }

  private:
    // Both parts trimmed as the templates do. 3.8's does not look for a block in content: there the
    // block is taken out before the template trims, so the rest is trimmed once more.
    Answer take_apart(const Message& message) const {
        Answer answer = data::take_apart(message.reasoning_content, python_strip(message.content));
        answer.reasoning = python_strip(answer.reasoning);
        if (generation_.has_effort) {
            answer.content = python_strip(answer.content);
        }
        return answer;
    }

    void write_system(RenderedText& out,
                      const Conversation& conversation,
                      const RenderOptions& options) const {
        const auto& messages = conversation.messages;
        const bool has_system = messages.front().role == "system";
        const std::string_view system =
            has_system ? python_strip(messages.front().content) : std::string_view();
        const std::string_view effort = generation_.has_effort ? effort_sentence(options) : "";
        if (conversation.tools) {
            out << "<|im_start|>system\n"
                << effort << (effort.empty() ? "" : "\n\n")
                << "# Tools\n\nYou have access to the following functions:\n\n<tools>";
            for (const io::Json& tool : conversation.tools->items()) {
                out << "\n" << python_json(tool);
            }
            out << "\n</tools>" << kToolInstructions << (system.empty() ? "" : "\n\n") << system
                << "<|im_end|>\n";
            return;
        }
        // Before 3.8 an empty system message has a turn of its own.
        const bool has_turn = generation_.has_effort ? !system.empty() : has_system;
        if (has_turn || !effort.empty()) {
            out << "<|im_start|>system\n"
                << effort << (!effort.empty() && !system.empty() ? "\n\n" : "") << system
                << "<|im_end|>\n";
        }
    }

    void write_answer(RenderedText& out,
                      const Message& message,
                      bool has_block,
                      bool trained,
                      const RenderOptions& options) const {
        const Answer answer = take_apart(message);
        out.left_out().text += answer.loses_text ? 1 : 0;
        out.left_out().reasoning += !has_block && !answer.reasoning.empty() ? 1 : 0;

        out << "<|im_start|>assistant\n";
        out.begin_span();
        if (has_block) {
            out << kThinkOpen << "\n";
            out.begin_span();
            out << answer.reasoning << "\n" << kThinkClose << "\n\n";
            if (answer.reasoning.empty() || !options.train_on_thinking) {
                out.begin_span();
            }
        }
        out << answer.content;
        std::string_view before = python_strip(answer.content).empty() ? "" : "\n\n";
        for (const ToolCall& call : message.tool_calls) {
            out << before << "<tool_call>\n<function=" << call.name << ">\n";
            before = "\n";
            write_arguments(out, call);
            out << "</function>\n</tool_call>";
        }
        out << "<|im_end|>";
        out.end_span(trained);
        out << "\n";
    }

    void write_arguments(RenderedText& out, const ToolCall& call) const {
        if (call.arguments.is_string() && call.arguments.as_string().empty()) {
            return;
        }
        const io::Json arguments = arguments_object(call);
        for (const auto& [name, value] : arguments.members()) {
            const bool as_json = generation_.json_scalars ? !value.is_string()
                                                          : value.is_object() || value.is_array();
            out << "<parameter=" << name << ">\n"
                << (as_json ? python_json(value) : python_str(value)) << "\n</parameter>\n";
        }
    }

    Generation generation_;
};

}  // namespace

std::unique_ptr<ChatFormat> make_qwen35_format() {
    return std::make_unique<Qwen35Format>(kQwen35);
}

std::unique_ptr<ChatFormat> make_qwen35_small_format() {
    return std::make_unique<Qwen35Format>(kQwen35Small);
}

std::unique_ptr<ChatFormat> make_qwen36_format() {
    return std::make_unique<Qwen35Format>(kQwen36);
}

std::unique_ptr<ChatFormat> make_qwen38_format() {
    return std::make_unique<Qwen35Format>(kQwen38);
}

}  // namespace dflash::data
