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

/// What a server's request can set beside the messages, and which of the model's words are trained.
/// A switch that a family does not know changes nothing.
struct RenderOptions {
    bool add_generation_prompt = false;
    std::optional<bool> enable_thinking{};
    std::optional<bool> preserve_thinking{};        ///< Qwen3.6 and later; by default the family's
    std::optional<std::string> reasoning_effort{};  ///< Qwen3.8, gpt-oss; by default the family's
    std::optional<std::string> date{};  ///< Llama 3.1, gpt-oss: as the system message writes it

    // These change spans only, never the text.
    bool train_on_thinking = true;    ///< whether reasoning is trained, with its closing mark
    bool train_on_tool_calls = true;  ///< whether assistant messages that call tools are trained
    bool last_turn_only = false;      ///< trains only what follows the last user message
};

/// The marks of the format "generic": what stands before and after the content of each role.
struct GenericMarks {
    std::string begin;  ///< before everything: a begin token, if the model has one
    std::string system_start, system_end;
    std::string user_start, user_end;
    std::string assistant_start, assistant_end;
    std::string tool_start, tool_end;

    friend bool operator==(const GenericMarks&, const GenericMarks&) = default;
};

/// Marks by which spans are found in text that somebody else rendered.
struct TextMarks {
    std::string assistant_header;            ///< what the model writes stands behind it ...
    std::vector<std::string> prompt_blocks;  ///< ... and behind the first of these that follows it
    std::vector<std::string> turn_ends;      ///< the model's turn ends with one of these
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

    virtual std::string_view name() const = 0;  ///< "smollm2", "qwen3", ...

    /// Throws Error{Data} if the format refuses the conversation.
    virtual Rendered render(const Conversation& conversation,
                            const RenderOptions& options) const = 0;

    /// Text of every special token the format writes, or text that holds it: none of them may be
    /// the mask token.
    virtual std::vector<std::string> used_tokens() const = 0;

    /// Those that a tokenizer must have as tokens for the format to mean anything: they begin and
    /// end turns.
    virtual std::vector<std::string> turn_tokens() const = 0;

    /// enable_thinking with which a server would have produced this conversation's last turn: true
    /// if the turn has reasoning (an empty think block that the row itself wrote counts as some),
    /// false if not; empty if the format knows no such switch.
    virtual std::optional<bool> served_thinking(const Conversation& conversation) const = 0;

    virtual TextMarks text_marks() const = 0;
};

/// What the model wrote in text that was rendered already: from each assistant header to and
/// including the next end of a turn, or the end of the text. The whole text if it has no header.
std::vector<ByteRange> spans_of_text(const ChatFormat& format, std::string_view text);

/// The format of that name; Error{Config} with the list of names, or if "generic" lacks a mark
/// (those of user and assistant are needed; a role without marks is refused row by row).
std::unique_ptr<ChatFormat> make_chat_format(std::string_view name, const GenericMarks& marks = {});
std::vector<std::string> chat_format_names();

struct DetectedFormat {
    std::unique_ptr<ChatFormat> format;
    std::string origin;  ///< by what it was recognised, for the first lines of a run
};

/// The format of a target folder, recognised by the whole text of its chat template
/// (chat_template.jinja, or tokenizer_config.json) or, without one, by its added tokens.
/// Error{Config} that names the template by its fingerprint, and data.chat_format, if it is none
/// of those known.
DetectedFormat detect_chat_format(const std::string& target_folder, const Tokenizer& tokenizer);

/// That of a setting: the name if there is one, else as detected.
DetectedFormat choose_chat_format(const std::optional<std::string>& name,
                                  const GenericMarks& marks,
                                  const std::string& target_folder,
                                  const Tokenizer& tokenizer);

}  // namespace dflash::data
