// SPDX-License-Identifier: Apache-2.0
// From rows of data files to prompts for a target, and from its answers to rows.
//
// A *task* is one answer to one row: row x samples + sample. A row of several turns is asked turn
// by turn, each behind the answers before it.
#pragma once

#include <dflash/data/data_list.hpp>
#include <dflash/data/prompt_row.hpp>
#include <dflash/data/row_file.hpp>
#include <dflash/target/generator.hpp>
#include <dflash/train/response_journal.hpp>
#include <dflash/train/run_data.hpp>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

/// How a family's answers reason, where it can do both.
enum class ThinkingMode { Mixed, On, Off };

struct ResponseOptions {
    data::AnswerChoice choice = data::AnswerChoice::Missing;
    ThinkingMode thinking = ThinkingMode::Mixed;
    std::int64_t samples = 1;
    std::int64_t max_new_tokens = 2048;
    std::int64_t max_prompt_tokens = 4096;
    std::int64_t context = 0;  ///< of the target: prompt and answer
    double max_repeated = 1;   ///< answers with a larger share of repeated 4-grams are dropped
    target::Sampling sampling;
    std::uint64_t seed = 0;
    data::RenderOptions render;
    int num_threads = 1;  ///< that judge rows
    /// Whether what is drawn for an answer hangs on what is asked instead of the row's place, so
    /// that rows which come to other places keep their answers. Weights of files play no part then.
    bool by_content = false;
};

/// Rows that are not asked, by reason, with the place of the first.
struct LeftOutRows {
    std::int64_t rows = 0;
    std::string first;  ///< "prompts.jsonl:12: why"
};

/// What judging the rows found.
struct ResponseFigures {
    std::int64_t rows = 0;
    std::int64_t asked = 0;           ///< rows with something to answer
    std::int64_t kept = 0;            ///< rows that stay as they are
    std::int64_t prompt_tokens = 0;   ///< of first turns, one sample
    std::int64_t longest_prompt = 0;  ///< of those asked
    std::int64_t turns = 0;           ///< answers to all rows that are asked, one sample
    Bytes bytes = 0;                  ///< of the files
    std::map<std::string, LeftOutRows> left_out;

    std::int64_t num_left_out() const;
};

class ResponseSource : NonCopyable {
  public:
    /// Opens the files and judges all rows: renders and encodes each prompt. Throws what RowFile
    /// throws, Error{Config} for a thinking mode that the format does not have, and what the format
    /// throws if it is none.
    ResponseSource(const std::vector<data::DataFile>& files,
                   const RunText& text,
                   ResponseOptions options,
                   const data::RowFileOptions& file_options = {});
    ~ResponseSource();

    const ResponseFigures& figures() const { return figures_; }

    /// Whether the format can do with and without reasoning.
    bool can_choose_thinking() const { return can_choose_thinking_; }

    /// Answers that are wanted, those already in a journal included.
    std::int64_t num_wanted() const { return figures_.asked * options_.samples; }

    /// All tasks, those of rows that are not asked included.
    std::int64_t num_tasks() const { return figures_.rows * options_.samples; }

    /// Tokens that a slot must hold.
    std::int64_t capacity() const;

    /// Sizes and hashes of the files, for the identity of a journal.
    std::string content_hash() const;

    /// Where answers go to, and where those are that are done.
    void set_keeper(ResponseKeeper& keeper) { keeper_ = &keeper; }

    /// From here on next() gives these tasks, which rows that are asked have, in this order.
    void ask_for(std::vector<std::int64_t> tasks);

    /// Whether the row is asked; or is not since its prompt is too long.
    bool asks(std::int64_t row) const { return kind_of(row) == Kind::Asked; }

    bool too_long(std::int64_t row) const { return kind_of(row) == Kind::TooLong; }

    /// by_content: the same for all tasks that ask the same in the same mode and are the same
    /// sample; several rows that ask the same have names of their own, in their order.
    std::string content_key(std::int64_t task) const;

    /// The row with answers that were given before (ResponseEntry::answers).
    std::string row_with(std::int64_t task, const std::vector<io::Json>& answers, bool cut) const;

    /// The next prompt; nothing if there is none now. From any thread.
    std::optional<target::GenerationRequest> next();

    /// An answer to a prompt that next() gave. From any thread. Throws Error{Storage}.
    void take(target::Generation generation);

    /// Sums of the journal, and turns that were not asked since the conversation had become too
    /// long or was cut. From any thread.
    ResponseSums sums() const;
    std::int64_t turns_left() const;

    /// Writes the output of the journal in the order of the rows.
    void publish(ResponseJournal& journal);

  private:
    enum class Kind : std::uint8_t { Asked, Kept, TooLong, LeftOut };

    struct Asked;

    /// Of what a row asks.
    using ContentHash = std::array<std::uint64_t, 2>;

    Kind kind_of(std::int64_t row) const { return kinds_[static_cast<std::size_t>(row)]; }

    const data::RowFile& file_of(std::int64_t row, std::int64_t& place) const;
    data::PromptRow::Result read(std::int64_t row) const;
    std::string place(std::int64_t row) const;
    void tell_repetitions_apart();
    std::uint64_t number_of(std::int64_t task) const;
    std::string to_row(std::int64_t task, const data::PromptRow& row, bool cut) const;
    std::optional<bool> thinking_of(std::int64_t task) const;
    data::RenderOptions render_options(std::int64_t task) const;
    void judge(std::int64_t row, ResponseFigures& figures);
    void judge_all();
    std::optional<target::GenerationRequest> ask(std::int64_t task);
    bool prepare(Asked& asked, std::int64_t task) const;
    target::GenerationRequest request_of(std::int64_t task, const Asked& asked) const;
    ResponseEntry entry_of(std::int64_t task, const Asked& asked) const;

    RunText text_;
    ResponseOptions options_;
    bool can_choose_thinking_ = false;
    std::vector<data::RowFile> files_;
    std::vector<std::int64_t> first_rows_;  // of each file and, last, of all
    std::vector<Kind> kinds_;               // by row
    std::vector<ContentHash> contents_;     // by row; by_content only
    bool has_turns_ = false;
    ResponseFigures figures_;
    ResponseKeeper* keeper_ = nullptr;

    mutable std::mutex mutex_;         // guards: everything below, and the keeper
    std::vector<std::int64_t> order_;  // tasks to ask ...
    std::size_t next_ = 0;             // ... and the next one of them
    std::map<std::int64_t, std::unique_ptr<Asked>> in_flight_;  // by task
    std::deque<std::int64_t> more_turns_;                       // tasks of in_flight_
    std::int64_t turns_left_ = 0;
};

}  // namespace dflash::train
