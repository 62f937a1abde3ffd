// SPDX-License-Identifier: Apache-2.0
// The lines of a text file, plain or compressed, found once and read by number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace dflash::io {

/// How a file is packed; told by its first bytes, whatever its name is.
enum class Compression { None, Gzip, Zstd };

/// One line of a file.
struct Line {
    std::int64_t number = 0;  ///< from 1, blank lines included
    std::int64_t offset = 0;  ///< of the line's first byte in the (unpacked) file
    std::string_view text;    ///< without what JsonLines leaves out; empty for a blank line
};

/// A line without what readers of JsonLines do not see of it.
std::string_view strip_line(std::string_view line);

/// A file split at LF. From each line a byte order mark at the start, a CR at the end, and blanks
/// and tabs around it are left out; nothing else is looked at (LS, PS and a lone CR split nothing).
/// A last line without LF counts; an empty file has no lines.
///
/// Plain files are mapped, packed ones (.gz, .zst, also several streams in a row) are unpacked into
/// memory as a whole. Move-only; reading is thread-safe, and text stays valid while the object, or
/// what it was moved to, lives.
class JsonLines {
  public:
    /// Throws Error{Config} if the file is not there or cannot be read, Error{Data} if it is a
    /// folder or another thing that is no file, or packed data are damaged or cut short.
    explicit JsonLines(const std::string& path);
    JsonLines(JsonLines&&) noexcept;
    JsonLines& operator=(JsonLines&&) noexcept;
    ~JsonLines();

    /// Number of lines, blank ones included.
    std::int64_t size() const;

    /// The line of a number from 1 to size().
    Line line(std::int64_t number) const;

    /// "PATH:NUMBER", for messages.
    std::string place(std::int64_t number) const;

    const std::string& path() const;
    Compression compression() const;

    /// All bytes, as they are unpacked: to tell other formats, or to hash.
    std::string_view bytes() const;

    /// Whether the last line ends in LF; without it a damaged last line was probably cut.
    bool ends_in_newline() const;

  private:
    struct Content;
    std::unique_ptr<const Content> content_;
};

/// Takes the bytes of an unpacked file, piece by piece.
using PieceSink = std::function<void(std::string_view piece)>;

/// Unpacks a whole gzip or zstd file (told by its first bytes). `path` goes into errors. Throws
/// Error{Data} if it is neither, damaged or cut short, and what the sink throws.
void unpack(std::span<const std::byte> packed, const std::string& path, const PieceSink& sink);
std::string unpack(std::span<const std::byte> packed, const std::string& path);

}  // namespace dflash::io
