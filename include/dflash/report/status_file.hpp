// SPDX-License-Identifier: Apache-2.0
// status.json of a run folder: written while the run goes on, read by whoever wants to know.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/report/status.hpp>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace dflash::report {

/// Writes a file atomically, again and again, on a thread of its own: a disk that is slow holds up
/// nobody. May be used from any thread.
class StatusFile : NonCopyable {
  public:
    explicit StatusFile(std::string path);

    /// As finish().
    ~StatusFile();

    /// Returns at once; of several in a row the last one is written. A file that cannot be written
    /// is a warning, once until it works again.
    void write(const RunStatus& status);

    /// Waits until the last one is written, at most 5 seconds: then the disk hangs, and the thread
    /// is left behind. Nothing is written after that.
    void finish();

  private:
    struct State;
    std::shared_ptr<State> state_;
    std::thread thread_;
};

/// Of this machine, as a status names it.
std::string host_name();

/// When a process was started, in ticks since the machine's start; nothing if there is no such
/// process.
std::optional<std::int64_t> process_start_ticks(std::int64_t pid);

/// Whether the process that wrote a status is still there.
enum class Writer {
    Running,
    Gone,
    Unknown,  ///< it ran on another machine
};

Writer writer_of(const RunStatus& status);

/// Reads RUN/status.json. Throws Error{Config} if there is none, Error{Config} or Error{Data} if it
/// is none.
RunStatus read_status(const std::string& run_folder);

/// The run below `folder` whose status was written last; nothing if there is none.
std::optional<std::string> newest_run(const std::string& folder);

/// What `dflash status` prints: where the run is, whether somebody writes to it, the block, and for
/// a run that is over or whose process is gone what to do. `columns`: width of the block.
std::vector<std::string> status_lines(const RunStatus& status,
                                      const std::string& run_folder,
                                      Writer writer,
                                      int columns,
                                      double now_s);

}  // namespace dflash::report
