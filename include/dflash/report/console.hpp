// SPDX-License-Identifier: Apache-2.0
// Where the lines of the program go: standard output, and console.log of the run folder. On a
// terminal a block of lines may stand below them, which is drawn again and again.
#pragma once

#include <dflash/core/log.hpp>
#include <dflash/core/scope.hpp>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::report {

/// Lines of a block at most.
constexpr int kMaxBlockLines = 10;

/// Room for a block on the terminal as it is now.
struct BlockSpace {
    int columns = 0;
    int lines = 0;         ///< at most kMaxBlockLines, and one less than the terminal has
    bool colours = false;  ///< SGR sequences (CSI ... m) may be used
};

/// Warnings so far, and the text of the last one.
struct ConsoleWarnings {
    std::int64_t count = 0;
    std::string last;
};

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

    /// Where a block can be shown, and how large; nothing in a pipe or file, on a terminal that
    /// cannot move its cursor (TERM=dumb), one that is gone, or one of which the process is in the
    /// background. Colours are off where NO_COLOR is set.
    std::optional<BlockSpace> block_space() const;

    /// Shows these lines (text without control characters but colours, which each line sets back)
    /// below all others, instead of the block that is there; they are cut to the room there is. The
    /// block stays below lines that are printed, survives changes of the terminal's size, and does
    /// not go into the file. A terminal that is slow gets the newest one when it takes text again.
    void show_block(std::vector<std::string> lines);

    /// Removes the block.
    void clear_block();

    /// Removes the block, and none is shown any more: what comes are the last lines.
    void end_blocks();

    /// Is called by report_failure() once the failure is printed, from its thread; null: nobody.
    void set_failure_listener(std::function<void(const std::exception_ptr&)> listener);
    void tell_failure(const std::exception_ptr& error);

    /// Waits at most two seconds for a slow terminal to take what is left.
    void flush();

    ConsoleWarnings warnings() const;

    /// Path of the attached file; empty before attach().
    std::string log_path() const;

    /// Whether lines are shown no more: the terminal, pipe or disk behind them refused one.
    bool is_gone() const;

    /// Whether lines are shown on a terminal (as opposed to a file or pipe), and its width in
    /// columns (80 if unknown).
    bool is_terminal() const;
    int width() const;

  private:
    struct State;
    void write_line(LogLevel level, std::string_view line);

    std::unique_ptr<State> state_;
};

/// For the handler of SIGCONT: the process was stopped, and others have written to its terminal.
/// The next block begins below what is there.
void note_continued() noexcept;

/// For a handler that ends the process at once: sets colours back, which a write that a slow
/// terminal cut short may have left set. Does not wait.
void reset_colours() noexcept;

/// The console of the program: on standard output, installed when first asked for, never destroyed,
/// so that threads may log until the very end.
Console& console();

}  // namespace dflash::report
