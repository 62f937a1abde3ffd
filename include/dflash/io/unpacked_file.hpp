// SPDX-License-Identifier: Apache-2.0
// A file as bytes, whether it is packed or not.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/io/mapped_file.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace dflash::io {

/// A plain file is mapped. A packed one (gzip or zstd, told by its first bytes, also several
/// streams in a row) is unpacked: into memory if it is small, else into a file without a name,
/// which is mapped and gone when the object is. Reading is thread-safe.
class UnpackedFile : NonCopyable {
  public:
    /// What is larger than this, unpacked, goes to the disk.
    static constexpr std::size_t kMostInMemory = std::size_t{64} << 20;

    /// `scratch_folder`: where to unpack to, created if it is missing; empty: the system's folder
    /// for temporary files. Throws Error{Config} if the file is not there or cannot be read,
    /// Error{Data} if it is a folder or another thing that is no file, or packed data are damaged
    /// or cut short, Error{Storage} if it cannot be unpacked to the folder.
    explicit UnpackedFile(const std::string& path, const std::string& scratch_folder = {});

    std::string_view text() const { return mapped_ ? mapped_->text() : std::string_view(memory_); }

    bool is_packed() const { return is_packed_; }

    /// Tells the system that a part of the bytes will not be read soon.
    void forget(std::size_t offset, std::size_t size) const;

  private:
    std::optional<MappedFile> mapped_;
    std::string memory_;  // of a small packed file
    bool is_packed_ = false;
};

}  // namespace dflash::io
