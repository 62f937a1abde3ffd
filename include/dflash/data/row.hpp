// SPDX-License-Identifier: Apache-2.0
// One row of a data file, whatever shape it has: a conversation, finished text, or finished tokens.
// A row is used whole or refused with a kind and a sentence; nothing of it is lost silently. In all
// fields null counts as absent, and a key that is read and stands twice refuses the row.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/data/conversation.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace dflash::data {

/// Text that is tokenised as it stands.
struct FinishedText {
    std::string text;
};

/// Token ids, of which positions with `attention_mask` 0 are gone already.
struct FinishedTokens {
    std::vector<TokenId> ids;                            // [S]
    std::optional<std::vector<std::uint8_t>> loss_mask;  // [S], 0 or 1
};

struct Row {
    std::variant<Conversation, FinishedText, FinishedTokens> content;
    /// What the shape is called in reports: the fields that hold the content ("messages",
    /// "prompt + response", "input_ids + labels").
    std::string shape;
    /// Fields of the row that nobody reads, and those of its messages as "messages[].NAME", each
    /// once, if they hold anything but null.
    std::vector<std::string> ignored;
    /// Of a conversation: `finish_reason` is "length", so that its last answer ends where it was
    /// cut.
    bool answer_cut = false;
};

/// Why a row cannot be used: a kind to count by and a sentence that names the field and what was
/// found.
struct RowFault {
    std::string kind;  ///< "bad_json", "no_known_fields", "unknown_role", ...
    std::string message;
    std::int64_t column = 1;  ///< in characters, from 1: where the JSON text is wrong, else where
                              ///< the row begins
    std::int64_t line = 0;    ///< lines of the row before that place: 0 but in rows of many lines
    bool ends_early = false;  ///< the text ends inside a value
};

/// Exactly one of the two is set.
struct RowResult {
    std::optional<Row> row;
    std::optional<RowFault> fault;
};

/// Whether a line holds nothing but a byte order mark and blanks.
bool is_blank_line(std::string_view line);

/// Reads one row: the text of a line, or of a JSON value over several lines. A byte order mark
/// before it and blanks around it are ignored. The first field that is present decides the shape:
///   1. `messages`, `conversations`, `conversation`: a list (or text that holds one) of messages
///      (role/from, content/value/text), or of pairs like {"input", "output"}; `data`: a list of
///      texts, user and assistant in turn. A bare list of messages is a row too.
///   2. `input_ids` with `loss_mask`, `assistant_mask`, `assistant_masks` or `labels`, or without.
///   3. `text`: finished text.
///   4. `turns`: a list of questions.
///   5. a question (`prompt`, `instruction`, `question`, `problem`, `query`, `input`) and an answer
///      (`response`, `completion`, `output`, `solution`, `answer`, `chosen`), each text or
///      messages; `input` or `context` beside the question follow it; `history` holds earlier
///      pairs.
///   6. `chosen` alone, as messages.
/// `system` or `system_prompt` becomes the first message if it is not empty and no message is a
/// system message; `tools` (or `functions`, its older form) is a list or text that holds one.
///
/// `finish_reason` says how the last answer of a conversation ended.
///
/// `ends_file`: nothing follows the row, not even a line end; one that ends early was cut then, and
/// its fault is of kind truncated.
RowResult read_row(std::string_view text, bool ends_file = false);

}  // namespace dflash::data
