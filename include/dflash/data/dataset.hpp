// SPDX-License-Identifier: Apache-2.0
// The lines of the data files, judged once before the first step, and read again by place whenever
// they are needed.
#pragma once

#include <dflash/data/chat_format.hpp>
#include <dflash/data/data_history.hpp>
#include <dflash/data/row_file.hpp>
#include <dflash/data/sample.hpp>
#include <dflash/data/tokenizer.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace dflash::data {

/// Result of judging every line: counts by reason, first examples, lengths.
struct DataReport {
    std::vector<std::string> files;
    std::string chat_format;
    std::int64_t max_length = 0;  ///< tokens a sample was cut to
    std::int64_t lines = 0;       ///< lines that are not blank
    std::int64_t blank = 0;
    std::int64_t usable = 0;
    std::map<std::string, std::int64_t> refused;       ///< by kind
    std::map<std::string, std::string> first_example;  ///< kind -> "path:line:column: message"
    std::int64_t tokens = 0;                           ///< of usable samples, after cutting
    std::int64_t trainable_tokens = 0;
    std::int64_t longest = 0;         ///< tokens of the longest usable sample, before cutting
    std::int64_t cut = 0;             ///< usable samples longer than max_length, cut at the end
    std::int64_t cut_tokens = 0;      ///< what they lost
    std::int64_t vanished_bytes = 0;  ///< bytes that the vocabulary has no token for
    LeftOut left_out;                 ///< by the chat format, over all usable samples
    std::int64_t anchors = 0;  ///< anchors an epoch will draw (at most max_anchors per sample)
    std::int64_t without_anchor = 0;  ///< usable samples without two trained tokens side by side

    std::int64_t num_refused() const;
    std::string to_markdown() const;  ///< data-report.md
};

struct DatasetOptions {
    std::int64_t max_length = 4096;
    double max_bad_fraction = 0.01;
    std::int64_t max_anchors = 512;  ///< for DataReport::anchors
    int num_threads = 2;
    /// enable_thinking, if set, holds for all rows; otherwise each row is rendered as the server
    /// did that made its last turn (ChatFormat::served_thinking).
    RenderOptions render{};
    RowFileOptions files{};
};

/// Immutable after opening; encode() may be called concurrently.
class Dataset {
  public:
    /// Maps the files, finds and judges all lines. Throws Error{Data}: empty file, a file that is
    /// not JSON lines, no usable row, no supervised token, more than max_bad_fraction refused
    /// (path, line, column of the first of each kind); Error{Config}: file not found, a tokenizer
    /// without the tokens that begin and end a turn in this format.
    ///
    /// Kinds of refused rows beside those of read_row: truncated (the last line, cut), prompt_only,
    /// refused_by_format, nothing_trained (all answers have weight 0), cut_before_answer (no
    /// trained token is left within max_length).
    static Dataset open(const std::vector<std::string>& files,
                        std::shared_ptr<const Tokenizer> tokenizer,
                        std::shared_ptr<const ChatFormat> format,
                        DatasetOptions options);
    Dataset(Dataset&&) noexcept;
    ~Dataset();

    /// Ids of usable samples, rising. An id is the line's number over all files (blank lines not
    /// counted).
    const std::vector<SampleId>& usable() const;
    const DataReport& report() const;

    /// Tokens and loss mask of a sample, cut to max_length; `ref` holds the id only. Reads the line
    /// again; Error{Data} if the file was changed since, so that the row is now refused.
    Sample encode(SampleId id) const;

    /// Tokens of a usable sample as judged (for planning), in the order of usable().
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
