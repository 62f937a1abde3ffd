// SPDX-License-Identifier: Apache-2.0
// What judging every row of a data set found, and how it is told: to people as text, to programs as
// JSON.
#pragma once

#include <dflash/data/chat_format.hpp>
#include <dflash/io/json.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dflash::data {

/// Rows to which the same happened.
struct RowGroup {
    /// Places kept as examples.
    static constexpr std::size_t kMostPlaces = 5;

    std::int64_t rows = 0;
    std::vector<std::string> places;  ///< "path:line" of the first ones
    std::string message;              ///< of the first one: "path:line:column: what is wrong"
};

/// Rows of one shape, and how many of them can be trained on.
struct ShapeCount {
    std::int64_t rows = 0;
    std::int64_t usable = 0;
};

struct FileCount {
    std::string path;
    double weight = 1;
    std::int64_t rows = 0;
    std::int64_t usable = 0;
};

/// Something about the data that is worth a look: what it is, and what to do.
struct DataWarning {
    std::string code;  ///< for programs: "many_duplicates"
    std::string what;
    std::string hint;
};

/// Result of judging every row. Figures of tokens are of usable rows, after cutting, unless they
/// say otherwise.
struct DataReport {
    std::vector<FileCount> files;
    std::string chat_format;
    std::int64_t max_length = 0;   ///< tokens a sample was cut to
    std::int64_t max_anchors = 0;  ///< of one sample and epoch
    std::int64_t block_size = 0;
    double max_bad_fraction = 0;
    bool target_answers = false;  ///< in a run the target answers rows that have no answer

    std::int64_t bytes = 0;  ///< of the files, unpacked
    std::int64_t lines = 0;  ///< rows: lines that are not blank, or items of arrays
    std::int64_t blank = 0;
    std::int64_t usable = 0;
    std::int64_t answered = 0;  ///< usable rows that a model has answered
    std::int64_t pending = 0;   ///< rows whose answers are still to come; not among the usable
    std::map<std::string, std::int64_t> dropped_answers;  ///< answers that are not used, by reason
    std::map<std::string, ShapeCount> shapes;             ///< of rows that could be read
    std::map<std::string, RowGroup> refused;              ///< by kind
    std::map<std::string, std::int64_t> ignored;  ///< fields that nobody reads: in how many rows
    RowGroup duplicates;                          ///< usable rows that an earlier row equals

    std::int64_t tokens = 0;
    std::int64_t trainable_tokens = 0;
    std::int64_t longest = 0;     ///< tokens of the longest usable sample, before cutting
    std::int64_t length_p50 = 0;  ///< the same at the middle, and where 90 and 99 % are shorter
    std::int64_t length_p90 = 0;
    std::int64_t length_p99 = 0;
    /// Usable samples by their tokens before cutting: entry i has those of more than
    /// kShortest * 2^(i-1) and at most kShortest * 2^i, the first one all up to kShortest, the last
    /// one all that are longer.
    static constexpr std::int64_t kShortest = 32;
    static constexpr std::size_t kNumLengths = 14;
    std::vector<std::int64_t> lengths = std::vector<std::int64_t>(kNumLengths);

    RowGroup cut;                    ///< usable samples longer than max_length, cut at the end
    std::int64_t cut_tokens = 0;     ///< what they lost ...
    std::int64_t cut_trainable = 0;  ///< ... and how many of these would have been trained
    /// Trained tokens of rows that were dropped because no answer begins within max_length.
    std::int64_t dropped_trainable = 0;
    std::int64_t vanished_bytes = 0;     ///< bytes that the vocabulary has no token for
    LeftOut left_out;                    ///< by the chat format, over all usable samples
    std::int64_t anchors = 0;            ///< anchors an epoch will draw
    std::int64_t anchor_candidates = 0;  ///< tokens at which a block could begin
    std::int64_t capped = 0;             ///< samples with more candidates than max_anchors
    double covered =
        0;  ///< trained tokens that a block of an epoch predicts, on average over seeds
    RowGroup without_anchor;  ///< usable samples without two trained tokens side by side

    std::int64_t num_refused() const;

    /// Those that count towards data.max_bad_fraction: not what a setting asked to leave out.
    std::int64_t num_bad() const;

    std::int64_t num_refused(const std::string& kind) const;

    /// Refused rows as they are, but with an answer of the target in a run.
    std::int64_t num_to_answer() const;

    /// Share of the trained tokens that cutting lost, those of dropped rows included.
    double lost_fraction() const;

    /// In the order of what matters most.
    std::vector<DataWarning> warnings() const;

    std::string to_markdown() const;  ///< data-report.md
    io::Json to_json() const;         ///< data-report.json

    /// For a terminal of `columns` columns.
    std::vector<std::string> to_lines(int columns) const;
};

}  // namespace dflash::data
