// SPDX-License-Identifier: Apache-2.0
// A file that is written from front to back, with every failure an Error{Storage}.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dflash::io {

/// Owner of a file descriptor open for writing. Move-only; not thread-safe. Unbuffered: each write
/// is handed to the system in one call (and more only if the system takes less), so lines written
/// with one call by several processes do not mix in append mode.
class OutputFile {
  public:
    enum class Mode {
        Create,     ///< new or emptied
        CreateNew,  ///< must not exist yet
        Append,     ///< new, or continued at its end
    };

    /// Opens the file. Throws Error{Storage}.
    OutputFile(std::string path, Mode mode);
    OutputFile(OutputFile&& other) noexcept;
    OutputFile& operator=(OutputFile&& other) noexcept;

    /// Closes without fsync and without reporting failures; call close() to hear of them.
    ~OutputFile();

    /// Writes all bytes. Throws Error{Storage} with the path, the system's reason and, for a full
    /// disk, the free bytes.
    void write(std::span<const std::byte> bytes);
    void write(std::string_view text);

    /// Waits until the bytes are on the disk (fsync). Throws Error{Storage}.
    void sync();

    /// Cuts the file to `size` bytes: takes back what a failed write left of itself. Throws
    /// Error{Storage}.
    void truncate(std::int64_t size);

    /// Closes; throws Error{Storage} if the system reports a late write error. Nothing may be
    /// written afterwards.
    void close();

    const std::string& path() const { return path_; }

  private:
    std::string path_;
    int descriptor_ = -1;
};

}  // namespace dflash::io
