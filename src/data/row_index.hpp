// SPDX-License-Identifier: Apache-2.0
// The places of the rows of a file, and the file in which they are kept.
#pragma once

#include <dflash/data/row_file.hpp>
#include <dflash/io/mapped_file.hpp>
#include <dflash/io/unpacked_file.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::data {

/// Size and time of a data file, by which it is known to be the same.
struct FileStamp {
    std::int64_t bytes = 0;
    std::int64_t modified_ns = 0;  ///< since 1970

    friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

/// Immutable; the places lie in memory or in a mapped index file.
class RowIndex {
  public:
    /// Finds the rows of a file. Throws Error{Data} for an array that is damaged. Pages that were
    /// read are given back, so that a large file does not fill the memory.
    static RowIndex build(const io::UnpackedFile& file, const std::string& path);

    /// What was kept of the file; nothing if there is none, or it is of another stamp or damaged.
    static std::optional<RowIndex> load(const std::string& index_path, const FileStamp& stamp);

    /// Throws Error{Storage}.
    void save(const std::string& index_path, const FileStamp& stamp) const;

    RowLayout layout() const { return layout_; }

    const FileContent& content() const { return content_; }

    /// Byte at which each row begins, rising.
    std::span<const std::int64_t> offsets() const { return offsets_; }

    /// Of each blank line, how many rows stand before it; rising. Only of lines.
    std::span<const std::int64_t> blanks() const { return blanks_; }

  private:
    RowIndex() = default;

    RowLayout layout_ = RowLayout::Lines;
    FileContent content_;
    std::vector<std::int64_t> numbers_;     // what the spans below lie in ...
    std::optional<io::MappedFile> mapped_;  // ... or this
    std::span<const std::int64_t> offsets_;
    std::span<const std::int64_t> blanks_;
};

}  // namespace dflash::data
