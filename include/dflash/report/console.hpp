// SPDX-License-Identifier: Apache-2.0
// Where the lines of the program go: standard output, and console.log of the run folder.
#pragma once

#include <dflash/core/log.hpp>
#include <dflash/core/scope.hpp>

#include <memory>
#include <string>
#include <string_view>

namespace dflash::report {

/// Writes every line to a terminal or pipe and to a file. Nothing that happens there ends or stalls
/// the run: a terminal that is gone (EIO, EPIPE) is left alone and the file goes on; one that takes
/// nothing (stopped with Ctrl-S, a full pipe) is written later, and what does not fit into 256 KiB
/// is counted and left out there; a file that cannot be written (full disk) is a warning on the
/// terminal, and the lines lost are counted in the file once it works again.
///
/// The program must ignore SIGPIPE. All members may be called from any thread and none throws,
/// except attach().
class Console : NonCopyable {
  public:
    /// `descriptor`: where lines are shown, 1 for standard output; not owned.
    explicit Console(int descriptor = 1);

    /// Gives the log back its former sink and flushes.
    ~Console();

    /// Becomes the sink of the log: warnings get the prefix "warning: ", errors "error: "; debug
    /// lines go to the file only.
    void install();

    /// Appends to the file at `path` from here on, starting with the lines printed so far (the last
    /// 4096 of them). Each line of the file begins with the time in UTC at which it was printed:
    /// "2026-01-31T12:00:00Z ". Throws Error{Storage} if the file cannot be opened.
    void attach(const std::string& path);

    /// Shows text as it is, line by line.
    void print(std::string_view text);

    /// Waits at most two seconds for a slow terminal to take what is left.
    void flush();

    /// Path of the attached file; empty before attach().
    std::string log_path() const;

    /// Whether lines are shown on a terminal (as opposed to a file or pipe), and its width in
    /// columns (80 if unknown).
    bool is_terminal() const;
    int width() const;

  private:
    struct State;
    void write_line(LogLevel level, std::string_view line);

    std::unique_ptr<State> state_;
};

/// The console of the program: on standard output, installed when first asked for, never destroyed,
/// so that threads may log until the very end.
Console& console();

}  // namespace dflash::report
