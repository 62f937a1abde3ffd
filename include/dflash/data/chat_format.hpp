// SPDX-License-Identifier: Apache-2.0
// Chat formats coded per family: the text a server would see, and the byte spans that the model
// itself writes.
#pragma once

#include <dflash/data/conversation.hpp>
#include <dflash/data/tokenizer.hpp>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::data {

struct RenderOptions {
    bool add_generation_prompt = false;
    std::optional<bool> enable_thinking;
};

/// `text` with the spans that are trained: from the end of a server's generation prompt to and
/// including the token that ends the turn.
struct Rendered {
    std::string text;
    std::vector<ByteRange> spans;
};

class ChatFormat {
  public:
    virtual ~ChatFormat() = default;

    virtual std::string_view name() const = 0;  ///< "smollm2", "qwen3"

    /// Throws Error{Data} if the format refuses the conversation.
    virtual Rendered render(const Conversation& conversation,
                            const RenderOptions& options) const = 0;

    /// Text of every special token the format writes: none of them may be the mask token.
    virtual std::vector<std::string> used_tokens() const = 0;
};

/// The format of that name; Error{Config} with the list of names.
std::unique_ptr<ChatFormat> make_chat_format(std::string_view name);
std::vector<std::string> chat_format_names();

/// The format of a target folder, recognised by its chat template (chat_template.jinja, or
/// tokenizer_config.json) or by its added tokens; Error{Config} that names data.chat_format if none
/// fits.
std::unique_ptr<ChatFormat> detect_chat_format(const std::string& target_folder,
                                               const Tokenizer& tokenizer);

}  // namespace dflash::data
