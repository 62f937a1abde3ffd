// SPDX-License-Identifier: Apache-2.0
// What the data files held when a run began, and what was added to them since: a run that is
// resumed goes on with the rows it began with, or takes further ones from an epoch's begin on.
#pragma once

#include <dflash/core/types.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace dflash::data {

/// Bytes of a data file, unpacked: how many, and their 64-bit FNV-1a hash.
struct FileContent {
    std::int64_t bytes = 0;
    std::uint64_t hash = 0;

    friend bool operator==(const FileContent&, const FileContent&) = default;
};

/// The files at one time. Rows are only ever added behind the others, so the ids of a state are
/// those below `num_rows`, also in every later state.
struct DataState {
    std::int64_t first_epoch = 0;  ///< the epoch, from 0, that is the first to use these rows
    std::int64_t num_rows = 0;
    std::vector<FileContent> files;

    friend bool operator==(const DataState&, const DataState&) = default;
};

/// How files relate to a state of before.
enum class DataChange {
    None,   ///< the same bytes
    Grown,  ///< the same bytes, and more behind those of the last file or in further files
    Other,
};

struct DataComparison {
    DataChange change = DataChange::None;
    std::string difference;  ///< for people; empty for None
    std::int64_t new_rows = 0;
};

/// The states of a run's data, oldest first; there is at least one.
class DataHistory {
  public:
    explicit DataHistory(DataState first) : states_{std::move(first)} {}

    /// One line that parse() reads back. Throws Error{Data} for anything else.
    std::string to_text() const;
    static DataHistory parse(const std::string& text);

    /// Adds a state; its first_epoch is not before the last one's.
    void extend(DataState state);

    const DataState& first() const { return states_.front(); }

    const DataState& last() const { return states_.back(); }

    const std::vector<DataState>& states() const { return states_; }

    friend bool operator==(const DataHistory&, const DataHistory&) = default;

  private:
    std::vector<DataState> states_;
};

}  // namespace dflash::data
