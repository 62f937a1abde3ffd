// SPDX-License-Identifier: Apache-2.0
// The format of Llama-3.1-Instruct. Source: the template in the wheel trl 1.16.0
// (trl/chat_templates/llama3_1.jinja), without its built-in tools, which only a request can turn
// on.
//
// There is always a system turn, with a date. Tool definitions go into the first message, which
// becomes a user turn whatever its role was. A message calls one tool or speaks: the content beside
// a call is not in the text.
#include "chat_families.hpp"
#include "python_text.hpp"
#include "rendered_text.hpp"
#include "tool_text.hpp"

#include <fmt/format.h>

namespace dflash::data {

namespace {

constexpr std::string_view kDefaultDate = "26 Jul 2024";

void write_header(RenderedText& out, std::string_view role) {
    out << "<|start_header_id|>" << role << "<|end_header_id|>\n\n";
}

void write_tools(RenderedText& out, const io::Json& tools) {
    out << "Given the following functions, please respond with a JSON for a function call with its "
           "proper arguments that best answers the given prompt.\n\n"
           "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument "
           "name and its value}.Do not use variables.\n\n";
    for (const io::Json& tool : tools.items()) {
        out << python_json_indented(tool) << "\n\n";
    }
}

void write_answer(RenderedText& out, std::size_t i, const Message& message, bool trained) {
    out.left_out().reasoning += message.reasoning_content.value_or("").empty() ? 0 : 1;
    write_header(out, "assistant");
    out.begin_span();
    if (message.tool_calls.empty()) {
        out << python_strip(message.content);
    } else {
        if (message.tool_calls.size() > 1) {
            refuse_message(i,
                           fmt::format("has {} tool calls; the chat format llama3.1 has a form for "
                                       "one at a time",
                                       message.tool_calls.size()));
        }
        out.left_out().text += python_strip(message.content).empty() ? 0 : 1;
        const ToolCall& call = message.tool_calls.front();
        out << "{\"name\": \"" << call.name
            << "\", \"parameters\": " << python_json(arguments_object(call)) << "}";
    }
    out << "<|eot_id|>";
    out.end_span(trained);
}

class Llama3Format final : public ChatFormat {
  public:
    std::string_view name() const override { return "llama3.1"; }

    Rendered render(const Conversation& conversation, const RenderOptions& options) const override {
        RenderedText out;
        const auto& messages = conversation.messages;
        const bool has_system = !messages.empty() && messages.front().role == "system";
        out << "<|begin_of_text|>";
        write_header(out, "system");
        out << (conversation.tools ? "Environment: ipython\n" : "")
            << "Cutting Knowledge Date: December 2023\nToday Date: "
            << (options.date ? std::string_view(*options.date) : kDefaultDate) << "\n\n"
            << (has_system ? python_strip(messages.front().content) : "") << "<|eot_id|>";
        std::size_t begin = has_system ? 1 : 0;
        if (conversation.tools) {
            begin = write_first_turn(out, conversation, begin);
        }
        for (std::size_t i = begin; i < messages.size(); ++i) {
            const Message& message = messages[i];
            if (message.role == "assistant") {
                write_answer(out, i, message, is_trained(conversation, i, options));
            } else if (message.role == "tool") {
                write_header(out, "ipython");
                out << python_json(io::Json::string(message.content)) << "<|eot_id|>";
            } else {
                write_header(out, message.role);
                out << python_strip(message.content) << "<|eot_id|>";
            }
        }
        if (options.add_generation_prompt) {
            write_header(out, "assistant");
        }
        return out.take();
    }

    std::vector<std::string> used_tokens() const override {
        return {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
    }

    std::vector<std::string> turn_tokens() const override {
        return {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
    }

    std::optional<bool> served_thinking(const Conversation& /*conversation*/) const override {
        return std::nullopt;
    }

    TextMarks text_marks() const override {
        return {.assistant_header = "<|start_header_id|>assistant<|end_header_id|>\n\n",
                .prompt_blocks = {},
                .turn_ends = {"<|eot_id|>", "<|eom_id|>"}};
    }

  private:
    // The turn with the tools; the index behind the message that it took.
    static std::size_t write_first_turn(RenderedText& out,
                                        const Conversation& conversation,
                                        std::size_t first) {
        const auto& messages = conversation.messages;
        if (first == messages.size()) {
            refuse_message(first, "is missing: the tools go into the first message");
        }
        if (messages[first].role == "assistant" || messages[first].role == "tool") {
            // The template would make it a user's.
            refuse_message(first,
                           fmt::format("is of role {}; the chat format llama3.1 puts the tools "
                                       "into the first message, which must be the user's",
                                       messages[first].role));
        }
        write_header(out, "user");
        write_tools(out, *conversation.tools);
        out << python_strip(messages[first].content) << "<|eot_id|>";
        return first + 1;
    }
};

}  // namespace

std::unique_ptr<ChatFormat> make_llama31_format() {
    return std::make_unique<Llama3Format>();
}

}  // namespace dflash::data
