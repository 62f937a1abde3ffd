// SPDX-License-Identifier: Apache-2.0
// Chat formats coded per family: the text a server would see, and the byte spans that the model
// itself writes. Spans are derived while rendering, never by looking for headers in the result,
// since a message can hold such marks itself.
#pragma once

#include <dflash/data/conversation.hpp>
#include <dflash/data/tokenizer.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::data {

struct RenderOptions {
    bool add_generation_prompt = false;
    std::optional<bool> enable_thinking{};
};

/// What a format does not put into the text, because the family's own template does not: to be
/// counted and reported.
struct LeftOut {
    std::int64_t reasoning = 0;  ///< messages whose reasoning is not in the text
    std::int64_t text = 0;       ///< messages of which a piece of content is not in the text
    std::int64_t tools = 0;      ///< 1 if the row's tool definitions are not in the text

    friend bool operator==(const LeftOut&, const LeftOut&) = default;
};

/// `text` with the spans that are trained: from the end of a server's generation prompt to and
/// including the token that ends the turn. Messages with `train` false have none.
struct Rendered {
    std::string text;
    std::vector<ByteRange> spans;  ///< rising, not overlapping
    LeftOut left_out;
};

/// Stateless; all members may be called concurrently.
class ChatFormat {
  public:
    virtual ~ChatFormat() = default;

    virtual std::string_view name() const = 0;  ///< "smollm2", "qwen3"

    /// Throws Error{Data} if the format refuses the conversation.
    virtual Rendered render(const Conversation& conversation,
                            const RenderOptions& options) const = 0;

    /// Text of every special token the format writes: none of them may be the mask token.
    virtual std::vector<std::string> used_tokens() const = 0;

    /// Those that a tokenizer must have as tokens for the format to mean anything: they begin and
    /// end turns.
    virtual std::vector<std::string> turn_tokens() const = 0;

    /// enable_thinking with which a server would have produced this conversation's last turn: true
    /// if the turn has reasoning (an empty think block that the row itself wrote counts as some),
    /// false if not; empty if the format knows no such switch.
    virtual std::optional<bool> served_thinking(const Conversation& conversation) const = 0;
};

/// The format of that name; Error{Config} with the list of names.
std::unique_ptr<ChatFormat> make_chat_format(std::string_view name);
std::vector<std::string> chat_format_names();

/// The format of a target folder, recognised by its chat template (chat_template.jinja, or
/// tokenizer_config.json) or, without one, by its added tokens; Error{Config} that names
/// data.chat_format if none fits.
std::unique_ptr<ChatFormat> detect_chat_format(const std::string& target_folder,
                                               const Tokenizer& tokenizer);

}  // namespace dflash::data
