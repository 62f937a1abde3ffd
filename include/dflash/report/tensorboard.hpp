// SPDX-License-Identifier: Apache-2.0
// The numbers of a run as TensorBoard reads them.
#pragma once

#include <dflash/io/event_file.hpp>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace dflash::report {

/// Writes scalars to a file events.out.tfevents.<time>.<host> of the run folder. Not thread-safe.
class TensorBoardLog {
  public:
    /// Creates the file. Each (re)start of a run gets one of its own, whose time is later than that
    /// of all others there, and which tells readers to forget points after `last_step` (the step
    /// resumed from, 0 for a new run) in the earlier files. Throws Error{Storage}.
    TensorBoardLog(const std::string& run_folder, std::int64_t last_step);

    /// Writes what is left, as flush() does.
    ~TensorBoardLog();
    TensorBoardLog(const TensorBoardLog&) = delete;
    TensorBoardLog& operator=(const TensorBoardLog&) = delete;

    /// Adds numbers of a step; `wall_time_s` is in seconds since 1970. They reach the file within
    /// 5 seconds as long as steps go on, or with flush().
    void add(std::int64_t step, double wall_time_s, std::span<const io::Scalar> scalars);
    void add(std::int64_t step, double wall_time_s, std::initializer_list<io::Scalar> scalars);

    /// Hands everything to the system. A file that cannot be written is a warning; the numbers (at
    /// most 1 MiB of them) are kept and written later.
    void flush();

    const std::string& path() const { return file_.path(); }

  private:
    io::EventFile file_;
    std::chrono::steady_clock::time_point flushed_at_;
    bool failing_ = false;
    std::int64_t dropped_ = 0;  // events given up while failing
};

}  // namespace dflash::report
