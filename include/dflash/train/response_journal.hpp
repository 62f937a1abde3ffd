// SPDX-License-Identifier: Apache-2.0
// The answers that are done while more are written, in a folder beside the output: whatever ends
// the program, what is in it is kept, and the next start goes on with the rest.
//
// A *task* is one answer to one row: row x samples + sample.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/io/folder_lock.hpp>
#include <dflash/io/output_file.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dflash::train {

/// What must be equal for answers of different starts to stand in one file: (name, value).
using ResponseIdentity = std::vector<std::pair<std::string, std::string>>;

/// What the answers so far come to.
struct ResponseSums {
    std::int64_t answered = 0;  ///< tasks with a row
    std::int64_t tokens = 0;    ///< of all answers, the dropped ones included
    std::int64_t cut = 0;       ///< answers that reached the cap
    std::int64_t inexact = 0;   ///< answers that the chat format does not write back as they were
    std::map<std::string, std::int64_t> dropped;  ///< tasks without a row, by reason
};

/// One task that is done.
struct ResponseEntry {
    std::int64_t task = 0;
    std::string row;      ///< on one line; empty: dropped
    std::string dropped;  ///< why there is no row
    std::int64_t tokens = 0;
    bool cut = false;
    bool inexact = false;
};

/// Not thread-safe.
class ResponseJournal : NonCopyable {
  public:
    /// Opens OUTPUT.part, or makes it. A last line that was cut by a crash is taken off. Throws
    /// Error{Config} if the folder was made with another identity (naming what differs), is in use,
    /// or OUTPUT is there already; Error{Data} if the journal is damaged; Error{Storage}.
    ResponseJournal(const std::string& output,
                    const ResponseIdentity& identity,
                    std::int64_t num_tasks);

    /// Tasks that were done when it was opened.
    std::int64_t resumed() const { return resumed_; }

    bool done(std::int64_t task) const { return offsets_[static_cast<std::size_t>(task)] >= 0; }

    std::int64_t num_done() const { return num_done_; }

    const ResponseSums& sums() const { return sums_; }

    /// Adds a task that was not done; survives the end of the process at once, that of the machine
    /// after some seconds. Throws Error{Storage}.
    void add(const ResponseEntry& entry);

    /// Writes OUTPUT, which appears complete or not at all, and removes the journal. For each piece
    /// of it `next` gives a task whose row is to be written (nothing is if it was dropped), or a
    /// line of its own; false: that was all.
    struct Piece {
        std::int64_t task = -1;
        std::string line;
    };

    void publish(const std::function<bool(Piece&)>& next);

    /// OUTPUT.part.
    const std::string& folder() const { return folder_; }

    static std::string folder_of(const std::string& output) { return output + ".part"; }

  private:
    void read(const ResponseIdentity& identity);
    void count(const ResponseEntry& entry, std::int64_t offset);

    std::string output_;
    std::string folder_;
    std::optional<io::FolderLock> lock_;
    std::optional<io::OutputFile> file_;
    std::vector<std::int64_t> offsets_;  // by task: of its line; -1: not done
    std::int64_t size_ = 0;              // bytes of the journal
    std::int64_t num_done_ = 0;
    std::int64_t resumed_ = 0;
    ResponseSums sums_;
    std::chrono::steady_clock::time_point synced_ = std::chrono::steady_clock::now();
};

}  // namespace dflash::train
