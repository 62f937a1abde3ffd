// SPDX-License-Identifier: Apache-2.0
// One data file: where its rows are, found once and read by number.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/data/data_history.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace dflash::data {

/// How rows stand in a file.
enum class RowLayout {
    Lines,   ///< one a line
    Array,   ///< as the items of one JSON array
    Values,  ///< one after another, over several lines each
};

/// Where a row begins; both count from 1, columns count characters.
struct RowPlace {
    std::int64_t line = 1;
    std::int64_t column = 1;
};

struct RowFileOptions {
    /// Where packed files are unpacked to while they are open, and where the places of rows are
    /// kept; empty: the system's folder for temporary files, and nothing is kept.
    std::string cache_folder{};
    /// Files of at least this size have their places kept: finding them takes about a second a
    /// gigabyte.
    std::int64_t index_from_bytes = std::int64_t{64} << 20;
};

/// A file of rows, plain or packed (.gz, .zst; told by its first bytes). Lines end at LF; a byte
/// order mark at their beginning, CR at their end and blanks around them do not count. A file that
/// is one JSON array, or JSON values over several lines, is read as its rows.
///
/// Plain files are mapped, packed ones are unpacked into a file that nobody else sees. Move-only;
/// reading is thread-safe.
class RowFile {
  public:
    /// Throws Error{Config} if the file is not there or cannot be read, Error{Data} if it is empty,
    /// has only blank lines, is in another format (Parquet, UTF-16, lines that end with CR alone
    /// ...), is an array that is damaged, or packed data are damaged; Error{Storage} if there is no
    /// room to unpack it.
    explicit RowFile(const std::string& path, const RowFileOptions& options = {});
    RowFile(RowFile&&) noexcept;
    RowFile& operator=(RowFile&&) noexcept;
    ~RowFile();

    /// Number of rows: blank lines do not count.
    std::int64_t size() const;

    std::int64_t num_blank() const;

    RowLayout layout() const;

    /// A row from 0 to size() - 1, without what does not count of its line.
    std::string_view text(std::int64_t row) const;

    /// Byte of the (unpacked) file at which a row begins.
    std::int64_t offset(std::int64_t row) const;

    RowPlace place(std::int64_t row) const;

    /// Whether nothing follows the row, not even a line end: one that ends early was cut then.
    bool ends_file(std::int64_t row) const;

    const std::string& path() const;

    /// All bytes, unpacked.
    std::string_view bytes() const;

    /// How many bytes there are, and their hash.
    const FileContent& content() const;

    /// Whether the places were kept from an earlier time.
    bool used_index() const;

    /// Tells the system that the rows [begin, end) will not be read soon.
    void forget(std::int64_t begin, std::int64_t end) const;

  private:
    struct State;
    std::unique_ptr<const State> state_;
};

}  // namespace dflash::data
