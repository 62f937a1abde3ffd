// SPDX-License-Identifier: Apache-2.0
// The lines of the data files, judged once before the first step, and read again by place whenever
// they are needed.
#pragma once

#include <dflash/core/error.hpp>
#include <dflash/data/chat_format.hpp>
#include <dflash/data/data_history.hpp>
#include <dflash/data/data_list.hpp>
#include <dflash/data/data_report.hpp>
#include <dflash/data/mixture.hpp>
#include <dflash/data/row_answers.hpp>
#include <dflash/data/row_file.hpp>
#include <dflash/data/sample.hpp>
#include <dflash/data/tokenizer.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dflash::data {

struct DatasetOptions {
    std::int64_t max_length = 4096;
    double max_bad_fraction = 0.01;
    std::int64_t min_trained_tokens = 1;  ///< rows with fewer, after cutting, are left out
    std::int64_t max_anchors = 512;       ///< for the report: blocks of a sample and epoch ...
    std::int64_t block_size = 16;         ///< ... and tokens of a block
    int num_threads = 2;
    /// Whether open() throws for data that a run cannot use; otherwise problem() says so.
    bool refuse_bad_data = true;
    /// Rows judged and rows in all, ten times a second from one thread.
    std::function<void(std::int64_t, std::int64_t)> on_progress{};
    /// enable_thinking, if set, holds for all rows; otherwise each row is rendered as the server
    /// did that made its last turn (ChatFormat::served_thinking).
    RenderOptions render{};
    RowFileOptions files{};
    /// Rows that a model answers; null: all rows are as their files have them. Such a row is a
    /// usable sample from the start, whatever becomes of its answer, so that the order of samples
    /// does not depend on when it comes; one whose answer cannot be used is a dropped sample.
    std::shared_ptr<const RowAnswers> answers{};
    bool target_answers = false;  ///< for the report: DataReport::target_answers
};

/// Immutable after opening; encode() may be called concurrently.
class Dataset {
  public:
    /// Opens the files (see RowFile), and judges all rows. Throws what RowFile throws; Error{Data}:
    /// no usable row, no supervised token, more than max_bad_fraction refused (path, line, column
    /// of the first of each kind); Error{Config}: a tokenizer without the tokens that begin and end
    /// a turn in this format.
    ///
    /// Kinds of refused rows beside those of read_row: prompt_only, refused_by_format,
    /// foreign_token, nothing_trained (all answers have weight 0), cut_before_answer (no trained
    /// token is left within max_length), too_few_trained (as was asked for: not a bad row).
    static Dataset open(const std::vector<DataFile>& files,
                        std::shared_ptr<const Tokenizer> tokenizer,
                        std::shared_ptr<const ChatFormat> format,
                        DatasetOptions options);
    Dataset(Dataset&&) noexcept;
    ~Dataset();

    /// How often an epoch takes the samples of each file.
    Mixture mixture() const;

    /// Ids of usable samples, rising. An id is the line's number over all files (blank lines not
    /// counted).
    const std::vector<SampleId>& usable() const;
    const DataReport& report() const;

    /// Why a run cannot use the data: what open() throws if it is to.
    std::optional<Error> problem() const;

    /// Tokens and loss mask of a sample, cut to max_length; `ref` holds the id only. Reads the line
    /// again; Error{Data} if the file was changed since, so that the row is now refused. A row that
    /// a model answers is empty, with the reason in `dropped`, where its answer is of no use or
    /// still to come (kPendingAnswer).
    Sample encode(SampleId id) const;

    /// Tokens of a usable sample as judged (for planning), in the order of usable(); 0 where there
    /// is no answer.
    const std::vector<std::int32_t>& lengths() const;

    /// What the files hold, with first_epoch 0. A last line that was cut (it has no line end and is
    /// refused) does not count as a row yet.
    const DataState& state() const;

    /// Compares the files with a state of them that was recorded before. Reads all their bytes.
    DataComparison compare_with(const DataState& before) const;

    /// "path:line" of a sample, for messages.
    std::string place_of(SampleId id) const;

  private:
    struct Impl;
    std::unique_ptr<const Impl> impl_;
    explicit Dataset(std::unique_ptr<const Impl> impl);
};

/// Tokens and mask of a rendered conversation: a token is trained if it shares a byte with a span.
std::vector<std::uint8_t> loss_mask(const Encoding& encoding, const std::vector<ByteRange>& spans);

}  // namespace dflash::data
