// SPDX-License-Identifier: Apache-2.0
// Text under construction with the spans that the model writes.
#pragma once

#include <dflash/data/chat_format.hpp>

#include <string_view>
#include <utility>

namespace dflash::data {

class RenderedText {
  public:
    /// Appends text.
    RenderedText& operator<<(std::string_view text) {
        rendered_.text += text;
        return *this;
    }

    /// The model writes from here; a span that was begun before is forgotten ...
    void begin_span() { span_begin_ = size(); }

    /// ... to here. Kept only if the message is trained.
    void end_span(bool train) {
        if (train) {
            rendered_.spans.push_back({.begin = span_begin_, .end = size()});
        }
    }

    LeftOut& left_out() { return rendered_.left_out; }

    Rendered take() { return std::move(rendered_); }

  private:
    std::int64_t size() const { return static_cast<std::int64_t>(rendered_.text.size()); }

    Rendered rendered_;
    std::int64_t span_begin_ = 0;
};

/// Whether message i, one of the assistant, is trained: by its weight and the options.
bool is_trained(const Conversation& conversation, std::size_t i, const RenderOptions& options);

/// Throws Error{Data}: messages[i] is not what the format has a form for; `what` completes
/// "messages[i] ...".
[[noreturn]] void refuse_message(std::size_t i, std::string_view what);

}  // namespace dflash::data
