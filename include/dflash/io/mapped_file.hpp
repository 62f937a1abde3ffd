// SPDX-License-Identifier: Apache-2.0
// Whole files as read-only memory.
#pragma once

#include <dflash/core/error.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace dflash::io {

/// A regular file mapped read-only. Move-only; reading is thread-safe. The bytes stay at their
/// address when the object is moved. A file that another program cuts short while it is mapped ends
/// the process with SIGBUS, as with every mapping.
class MappedFile {
  public:
    /// How the bytes will be used: a hint to the system, never an error.
    enum class Advice { Normal, Sequential, Random, WillNeed, DontNeed };

    /// Maps the file; an empty file gives no bytes. Throws an Error of kind `kind` if it is not
    /// there or cannot be read, and of kind `other_kind` if what is there is no regular file, such
    /// as a folder, a pipe or a socket.
    MappedFile(std::string path, ErrorKind kind, ErrorKind other_kind);

    explicit MappedFile(std::string path, ErrorKind kind = ErrorKind::Storage)
        : MappedFile(std::move(path), kind, kind) {}

    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    ~MappedFile();

    std::span<const std::byte> bytes() const { return bytes_; }

    /// The same bytes as characters.
    std::string_view text() const;

    const std::string& path() const { return path_; }

    /// Advice for a part of the file; `size` is cut at the end of the file.
    void advise(Advice advice,
                std::size_t offset = 0,
                std::size_t size = static_cast<std::size_t>(-1)) const;

  private:
    void unmap() noexcept;

    std::string path_;
    std::span<const std::byte> bytes_;
};

}  // namespace dflash::io
