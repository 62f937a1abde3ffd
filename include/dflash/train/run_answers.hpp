// SPDX-License-Identifier: Apache-2.0
// The answers of a run whose data has rows that the target answers itself. They come from the cache
// or from the target, and stand in a file of the run's own (RUN/answers.jsonl): what a run trains
// on does not change, whatever becomes of the cache.
#pragma once

#include <dflash/data/data_report.hpp>
#include <dflash/data/row_answers.hpp>
#include <dflash/train/answer_rules.hpp>
#include <dflash/train/journal_file.hpp>
#include <dflash/train/response_cache.hpp>
#include <dflash/train/status_board.hpp>
#include <dflash/train/stop_signals.hpp>
#include <dflash/train/whereabouts.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

class Watchdog;

/// What answer() works with.
struct AnswerParts {
    const std::vector<gpu::Device>& devices;
    Whereabouts& whereabouts;
    Watchdog& watchdog;
    StatusBoard& board;
    const StopSignals& signals;
};

/// find() from any thread, also while answers come; all else from one thread.
class RunAnswers final : public data::RowAnswers, public ResponseKeeper {
  public:
    /// Whether some rows of the data may have to be answered: by data.responses, and by what
    /// judging them as they are has found.
    static bool are_wanted(const Settings& settings, const data::DataReport& report);

    /// Judges all rows and looks into the cache. Throws as ResponseSource does, and Error{Config}
    /// for more than one sample a prompt.
    RunAnswers(const Settings& settings, const RunText& text);
    ~RunAnswers() override;

    /// Takes the answers that the folder of a run holds, and writes nothing. Throws Error{Config}
    /// if they were made in another way or belong to other rows, Error{Storage}.
    void take_from(const std::string& run_folder);

    /// The same, and adds further ones to them from now on.
    void keep_in(const std::string& run_folder);

    /// Whether a folder has answers of a run.
    static bool are_in(const std::string& run_folder);

    /// Whether a folder has answers that were made in the way of these. Throws Error for a file
    /// that cannot be read.
    bool made_as_in(const std::string& run_folder) const;

    Found find(SampleId id) const override;

    /// Whether the row is the target's to answer.
    bool asks(SampleId id) const { return source_->asks(id); }

    /// Whether it is, and has no answer yet.
    bool pending(SampleId id) const;

    std::int64_t num_asked() const { return source_->figures().asked; }

    /// Tokens of the longest prompt among the rows to answer.
    std::int64_t longest_prompt() const { return source_->figures().longest_prompt; }

    /// How the answers are made, on one line.
    std::string identity_text() const;

    /// The report of the data with what is to be expected of the answers that are still to come,
    /// for a plan.
    data::DataReport expected(data::DataReport report) const;

    /// Rows, tokens, time and disk.
    std::vector<std::string> plan_lines(const std::vector<gpu::Device>& devices) const;

    /// Takes the answers to pending rows that the cache has; returns how many. keep_in() first.
    std::int64_t take_cached();

    /// Answers rows that are pending: from the cache, or by the target on all devices. False if a
    /// stop was asked for; what was answered is kept. keep_in() first.
    bool answer(const std::vector<SampleId>& rows, const AnswerParts& parts);

    /// What the answers came to, one line each.
    std::vector<std::string> summary_lines() const;

    bool done(std::int64_t task) const override;
    void add(const ResponseEntry& entry) override;

    const ResponseSums& sums() const override { return sums_; }

  private:
    /// Of the line of an answer in the file, and of the row in it.
    struct Place {
        std::int64_t offset = -1;   ///< -1: there is none
        std::int64_t bytes = 0;     ///< of the row; 0: the answer was dropped
        std::int32_t dropped = -1;  ///< index of why
    };

    void read(const JournalLine& line);
    void keep(const ResponseEntry& entry, bool cached);
    void count(const ResponseEntry& entry, bool cached, Place place);
    std::int32_t reason_index(const std::string& reason);
    std::int64_t take_from_cache(const std::vector<SampleId>& rows);
    std::vector<SampleId> left_of(const std::vector<SampleId>& rows) const;
    bool generate(const std::vector<SampleId>& rows, const AnswerParts& parts);
    double expected_tokens() const;
    std::int64_t num_in_cache() const;

    Settings settings_;
    RunText text_;
    AnswerRules rules_;
    ResponseIdentity identity_;
    std::unique_ptr<ResponseSource> source_;
    std::unique_ptr<ResponseCache> cache_;
    std::optional<JournalFile> file_;
    ResponseSums sums_;
    std::int64_t from_cache_ = 0;
    double generating_s_ = 0;     // of this process
    std::int64_t generated_ = 0;  // tokens of this process

    mutable std::mutex mutex_;   // guards: places_, reasons_
    std::vector<Place> places_;  // by row
    std::vector<std::string> reasons_;
};

}  // namespace dflash::train
