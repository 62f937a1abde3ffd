// SPDX-License-Identifier: Apache-2.0
// Files and folders that appear complete or not at all, whatever interrupts the writer: written
// under a temporary name in the same folder, forced to disk, renamed.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/io/output_file.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace dflash::io {

/// A file that replaces `path` when commit() is called. Not thread-safe.
class AtomicFile : NonCopyable {
  public:
    /// Creates the temporary file ".NAME.tmp-PID-N" beside `path`. Throws Error{Storage}.
    explicit AtomicFile(std::string path);

    /// Removes the temporary file unless commit() succeeded; `path` is then as it was.
    ~AtomicFile();

    void write(std::span<const std::byte> bytes) { file_.write(bytes); }

    void write(std::string_view text) { file_.write(text); }

    /// fsync of the file, rename to `path` (replacing what is there), fsync of the folder. Throws
    /// Error{Storage}; then `path` is as it was.
    void commit();

    const std::string& path() const { return path_; }

    const std::string& temporary_path() const { return file_.path(); }

  private:
    std::string path_;
    OutputFile file_;
    bool committed_ = false;
};

/// Replaces the file at `path` by `text`, atomically. Throws Error{Storage}.
void write_file_atomically(const std::string& path, std::string_view text);

/// Makes the folder `temporary` appear as `final_path`: fsync of every file and folder in it,
/// rename, fsync of the parent folder. Both must lie on one file system, and `final_path` must not
/// be there (an empty folder is replaced). Throws Error{Storage}; nothing is renamed then.
void publish_folder(const std::string& temporary, const std::string& final_path);

/// Makes `link` a symbolic link to `target` (as written, usually relative), replacing a former link
/// by rename. Throws Error{Storage}.
void replace_symlink(const std::string& link, const std::string& target);

/// Creates a folder and its parents where they are missing. Throws Error{Storage}.
void create_folders(const std::string& path);

/// fsync of a folder: makes creations, renames and removals in it last. Throws Error{Storage}.
void sync_folder(const std::string& path);

}  // namespace dflash::io
