// SPDX-License-Identifier: Apache-2.0
// Answers that targets gave to prompts, kept for all runs: a folder for each target and way of
// answering (cache.dir/responses/<key>), in it a journal of answers by what was asked.
#pragma once

#include <dflash/io/folder_lock.hpp>
#include <dflash/io/mapped_file.hpp>
#include <dflash/train/journal_file.hpp>
#include <dflash/train/response_keeper.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace dflash::train {

/// An answer as it was given: whether it is used is decided by whoever takes it.
struct CachedResponse {
    std::vector<io::Json> answers;  ///< messages, one a turn
    std::int64_t tokens = 0;
    bool cut = false;
    bool inexact = false;
    double repeated = 0;
};

/// Belongs to one thread. Reading needs no lock and makes nothing; one process at a time adds.
class ResponseCache : NonCopyable {
  public:
    /// Reads what is there. `root`: the cache's folder; empty: there is none, and nothing is kept.
    /// Warns of lines that are damaged, and has no answers of them. Throws Error{Data} for a
    /// journal of something else.
    ResponseCache(const std::string& root, ResponseIdentity identity);

    /// Empty if there is no cache.
    const std::string& folder() const { return folder_; }

    std::optional<CachedResponse> find(const std::string& key) const;

    bool has(const std::string& key) const { return entries_.contains(key); }

    std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }

    /// Mean tokens of an answer; nothing if there is none.
    std::optional<double> mean_tokens() const;

    /// Makes the folder and takes it for this process, after another one that adds to it has done
    /// so; then finds what that one added. `stop` is asked while it waits; false: it said so.
    /// Throws Error{Storage} if the folder cannot be made or written.
    bool begin_adding(const std::function<bool()>& stop);

    /// Adds an answer; find() does not know of it yet. Between begin_adding() and end_adding().
    void add(const std::string& key, const ResponseEntry& entry);

    /// Waits until all is on the disk, and lets others add.
    void end_adding();

  private:
    struct Place {
        std::int64_t offset;
        std::int64_t bytes;
    };

    std::string path() const;
    void read_new();

    ResponseIdentity identity_;
    std::string folder_;
    std::unordered_map<std::string, Place> entries_;
    std::optional<io::MappedFile> file_;
    std::int64_t read_bytes_ = 0;
    std::int64_t tokens_ = 0;
    std::optional<io::FolderLock> lock_;
    std::optional<JournalFile> adding_;
};

}  // namespace dflash::train
