// SPDX-License-Identifier: Apache-2.0
// The answers that are done while more are written, in a folder beside the output: whatever ends
// the program, what is in it is kept, and the next start goes on with the rest.
//
// A *task* is one answer to one row: row x samples + sample.
#pragma once

#include <dflash/io/folder_lock.hpp>
#include <dflash/train/journal_file.hpp>
#include <dflash/train/response_keeper.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

/// Not thread-safe.
class ResponseJournal final : public ResponseKeeper {
  public:
    /// Opens OUTPUT.part, or makes it. A last line that was cut by a crash is taken off. Throws
    /// Error{Config} if the folder was made with another identity (naming what differs), is in use,
    /// or OUTPUT is there already; Error{Data} if the journal is damaged; Error{Storage}.
    ResponseJournal(const std::string& output,
                    const ResponseIdentity& identity,
                    std::int64_t num_tasks);

    /// Finds out before anything else is done that an output cannot be written: Error{Config} if it
    /// is there already, Error{Storage} if its folder takes no files. Leaves nothing behind.
    static void check_output(const std::string& output);

    /// Tasks that were done when it was opened.
    std::int64_t resumed() const { return resumed_; }

    bool done(std::int64_t task) const override {
        return offsets_[static_cast<std::size_t>(task)] >= 0;
    }

    std::int64_t num_done() const { return num_done_; }

    const ResponseSums& sums() const override { return sums_; }

    /// Adds a task that was not done; survives the end of the process at once, that of the machine
    /// after some seconds. Throws Error{Storage}.
    void add(const ResponseEntry& entry) override;

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
    void read(const JournalLine& line, const ResponseIdentity& identity);
    void count(const ResponseEntry& entry, std::int64_t offset);

    std::string output_;
    std::string folder_;
    std::optional<io::FolderLock> lock_;
    std::optional<JournalFile> file_;
    std::vector<std::int64_t> offsets_;  // by task: of its line; -1: not done
    std::int64_t num_done_ = 0;
    std::int64_t resumed_ = 0;
    ResponseSums sums_;
};

}  // namespace dflash::train
