// SPDX-License-Identifier: Apache-2.0
// The files of a data set and the places of their rows.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/data/data_history.hpp>
#include <dflash/io/jsonl.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::data {

/// Immutable after construction; reading is thread-safe.
class DataFiles {
  public:
    /// Opens the files and lists their lines. Throws Error{Config} if one is not there, Error{Data}
    /// for one that is empty, has only blank lines, or is in another format than JSON lines.
    explicit DataFiles(const std::vector<std::string>& paths);

    /// Lines that are not blank, over all files; their numbers from 0 are the sample ids.
    std::int64_t num_rows() const { return static_cast<std::int64_t>(rows_.size()); }

    std::int64_t num_blank() const { return num_blank_; }

    std::string_view text(SampleId id) const;

    /// "path:line"
    std::string place(SampleId id) const;

    /// Whether this is the last line of a file that does not end in a line end.
    bool is_open_end(SampleId id) const;

    std::vector<FileContent> contents() const;

    /// Compares with a state of before, whose rows are the first of these if nothing but growth
    /// happened.
    DataComparison compare_with(const DataState& before) const;

  private:
    struct Row {
        std::int32_t file;
        std::int64_t line;
    };

    const Row& row(SampleId id) const;
    bool continues_a_row(const DataState& before) const;

    std::vector<io::JsonLines> files_;
    std::vector<Row> rows_;
    std::int64_t num_blank_ = 0;
};

}  // namespace dflash::data
