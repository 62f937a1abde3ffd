// SPDX-License-Identifier: Apache-2.0
// A row whose answers a model writes: what it is asked, turn by turn, and the row with the answers.
#pragma once

#include <dflash/data/conversation.hpp>
#include <dflash/data/row.hpp>
#include <dflash/io/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dflash::data {

/// Which answers are written.
enum class AnswerChoice {
    Missing,  ///< of questions that have none: rows that end with one, all turns of a list of turns
    All,      ///< the row's own answers are replaced
};

class PromptRow {
  public:
    /// The row, if a model has to answer it. Otherwise why it cannot be used; or neither: nothing
    /// of it is to be answered, and it stays as it is. `ends_file` as for read_row. Differs from
    /// read_row in that an empty text as answer (response: "") counts as none.
    ///
    /// All: every answer after the first question is written anew, each behind those before it. In
    /// a row with tool calls or tool results, which belong to the answers that are there, only the
    /// last answer is.
    struct Result;
    static Result read(std::string_view text, bool ends_file, AnswerChoice choice);

    /// What is to be answered now: its last message is not the assistant's. Meaningless once done.
    const Conversation& question() const { return conversation_; }

    /// Whether every turn has its answer.
    bool done() const { return done_; }

    /// Turns that have an answer of the model's.
    std::int64_t answered() const { return answered_; }

    /// Adds the answer to question() and goes on to the next turn.
    void answer(Message message);

    /// Adds an answer that was given before, as answers() had it. question() is of no use then.
    void restore(const io::Json& answer);

    /// The answers that were added, as messages.
    const std::vector<io::Json>& answers() const { return answers_; }

    /// The turns behind the one that is asked now, for comparing rows.
    std::string later_turns() const;

    /// Leaves out the turns that are not answered.
    void end() { done_ = true; }

    /// The row on one line, with the conversation as `messages` in place of the fields that it was
    /// read from, all other fields as they were, and `columns` at the end (in place of fields of
    /// their names). Messages of the row's own `messages` stay as they were written.
    std::string to_json(const std::vector<std::pair<std::string, io::Json>>& columns) const;

  private:
    PromptRow() = default;
    void add(io::Json written, Message message);

    io::Json row_;                     // an object
    std::vector<std::string> fields_;  // of row_, that hold the conversation
    Conversation conversation_;        // later_turns: what follows the answer, turn by turn
    std::vector<io::Json> written_;    // messages of conversation_ as JSON, as many as it has
    std::vector<std::vector<io::Json>> later_written_;
    std::vector<io::Json> answers_;
    std::int64_t answered_ = 0;
    bool done_ = false;
};

/// At most one of the two is set.
struct PromptRow::Result {
    std::optional<PromptRow> prompt;
    std::optional<RowFault> fault;
};

/// A message as the field `messages` of a row holds it.
io::Json to_json(const Message& message);

}  // namespace dflash::data
