// SPDX-License-Identifier: Apache-2.0
// The files of a data set and the places of their rows.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/data/data_history.hpp>
#include <dflash/data/row.hpp>
#include <dflash/data/row_file.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::data {

/// Immutable after construction; reading is thread-safe.
class DataFiles {
  public:
    /// Opens the files and finds their rows. Throws as RowFile does.
    DataFiles(const std::vector<std::string>& paths, const RowFileOptions& options);

    /// Rows over all files; their numbers from 0 are the sample ids.
    std::int64_t num_rows() const { return first_rows_.back(); }

    std::int64_t num_blank() const;

    std::string_view text(SampleId id) const;

    /// "path:line"
    std::string place(SampleId id) const;

    /// "path:line:column" of a fault in the row.
    std::string place(SampleId id, const RowFault& fault) const;

    bool ends_file(SampleId id) const;

    /// Index of the file a row is in.
    std::size_t file_of(SampleId id) const;

    /// Of each file the id of its first row, and behind them the number of rows.
    const std::vector<std::int64_t>& first_rows() const { return first_rows_; }

    std::vector<FileContent> contents() const;

    /// Compares with a state of before, whose rows are the first of these if nothing but growth
    /// happened.
    DataComparison compare_with(const DataState& before) const;

    const std::string& path(std::size_t file) const { return files_[file].path(); }

    /// Bytes of a file, unpacked.
    std::int64_t bytes(std::size_t file) const;

    /// Tells the system that the rows [begin, end) will not be read soon.
    void forget(SampleId begin, SampleId end) const;

  private:
    struct Place {
        const RowFile& file;
        std::int64_t row;
    };

    Place find(SampleId id) const;
    bool continues_a_row(const DataState& before) const;

    std::vector<RowFile> files_;
    std::vector<std::int64_t> first_rows_;
};

}  // namespace dflash::data
