// SPDX-License-Identifier: Apache-2.0
// Checksums of the files of a folder, by which a bit that has changed on its way to the disk or
// back is noticed. XXH64: not against forgery, but at the speed of memory.
//
// The list is what `xxh64sum` writes and reads (`xxh64sum -c LIST` in the folder): a line
// "HASH  PATH" a file. A last line "# HASH" is the hash of all before it, so that a list that is
// damaged itself is told from a damaged file.
#pragma once

#include <dflash/core/scope.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace dflash::io {

/// XXH64 (seed 0) of bytes as they come. Not thread-safe.
class Xxh64 : NonCopyable {
  public:
    Xxh64();
    ~Xxh64();

    void add(std::span<const std::byte> bytes);

    /// 16 lower-case hexadecimal digits of what was added so far.
    std::string hex() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

std::string xxh64_hex(std::string_view text);

/// Called between pieces of a few MiB with their bytes; what it throws ends the work.
using Between = std::function<void(std::int64_t bytes)>;

/// Hash of a file, read from front to back. Throws Error{Storage}.
/// From::Disk asks the system to forget its copy of the file first and afterwards, so that what is
/// read is what lies on the disk, as far as the file system lets one say so; bytes that were not
/// synchronised are read from memory all the same.
enum class From { Anywhere, Disk };
std::string xxh64_of_file(const std::string& path, From from, const Between& between = {});

/// Hash by path relative to the folder of the list.
using Checksums = std::map<std::string, std::string>;

/// The text of a list.
std::string to_text(const Checksums& checksums);

/// Reads a list. Throws Error{Storage} if it cannot be read, Error{Data} if it is no whole list.
Checksums read_checksums(const std::string& path);

/// Compares every listed file of `folder`. Throws Error{Data} naming the first that differs or is
/// not there, Error{Storage} for one that cannot be read.
void verify_checksums(const std::string& folder,
                      const Checksums& checksums,
                      From from,
                      const Between& between = {});

}  // namespace dflash::io
