// SPDX-License-Identifier: Apache-2.0
// Turns between marks that the user names: for models whose template is nothing but marks around
// the content of each role. There is no form for tools and none for reasoning.
#include "chat_families.hpp"
#include "python_text.hpp"
#include "rendered_text.hpp"

#include <dflash/core/error.hpp>

#include <fmt/format.h>
#include <utility>

namespace dflash::data {

namespace {

struct Marks {
    std::string_view start;
    std::string_view end;
};

class GenericFormat final : public ChatFormat {
  public:
    explicit GenericFormat(GenericMarks marks) : marks_(std::move(marks)) {}

    std::string_view name() const override { return kGenericFormat; }

    Rendered render(const Conversation& conversation, const RenderOptions& options) const override {
        RenderedText out;
        const auto& messages = conversation.messages;
        out.left_out().tools = conversation.tools ? 1 : 0;
        out << marks_.begin;
        for (std::size_t i = 0; i < messages.size(); ++i) {
            const Message& message = messages[i];
            if (!message.tool_calls.empty()) {
                refuse_message(i, "has tool calls, which the chat format generic has no form for");
            }
            out.left_out().reasoning += message.reasoning_content.value_or("").empty() ? 0 : 1;
            const Marks around = marks_of(message.role);
            if (around.start.empty()) {
                refuse_message(i,
                               fmt::format("is of role {0}, and data.generic_{0}_start is not set",
                                           message.role));
            }
            // White space behind the mark that ends a turn belongs to the next turn's prompt.
            const std::string_view end = python_rstrip(around.end);
            out << around.start;
            out.begin_span();
            out << message.content << end;
            out.end_span(is_trained(conversation, i, options));
            out << around.end.substr(end.size());
        }
        if (options.add_generation_prompt) {
            out << marks_.assistant_start;
        }
        return out.take();
    }

    std::vector<std::string> used_tokens() const override {
        return {marks_.begin,
                marks_.system_start,
                marks_.system_end,
                marks_.user_start,
                marks_.user_end,
                marks_.assistant_start,
                marks_.assistant_end,
                marks_.tool_start,
                marks_.tool_end};
    }

    // Marks may be plain text.
    std::vector<std::string> turn_tokens() const override { return {}; }

    std::optional<bool> served_thinking(const Conversation& /*conversation*/) const override {
        return std::nullopt;
    }

    TextMarks text_marks() const override {
        return {.assistant_header = marks_.assistant_start,
                .prompt_blocks = {},
                .turn_ends = {std::string(python_rstrip(marks_.assistant_end))}};
    }

  private:
    Marks marks_of(std::string_view role) const {
        if (role == "system") {
            return {marks_.system_start, marks_.system_end};
        }
        if (role == "user") {
            return {marks_.user_start, marks_.user_end};
        }
        if (role == "assistant") {
            return {marks_.assistant_start, marks_.assistant_end};
        }
        return {marks_.tool_start, marks_.tool_end};
    }

    GenericMarks marks_;
};

}  // namespace

std::unique_ptr<ChatFormat> make_generic_format(const GenericMarks& marks) {
    // Without a visible end the model would never learn to stop.
    for (const auto& [setting, value] :
         {std::pair("data.generic_user_start", marks.user_start),
          std::pair("data.generic_assistant_start", marks.assistant_start),
          std::pair("data.generic_assistant_end",
                    std::string(python_rstrip(marks.assistant_end)))}) {
        if (value.empty()) {
            throw Error(ErrorKind::Config,
                        {.what = fmt::format("data.chat_format is generic, and {} is not set or "
                                             "only white space",
                                             setting),
                         .where = {},
                         .cause = {},
                         .hint = "Set what the target's chat template writes before and after a "
                                 "message, e.g. \"<|im_start|>user\\n\" and \"<|im_end|>\\n\""});
        }
    }
    return std::make_unique<GenericFormat>(marks);
}

}  // namespace dflash::data
