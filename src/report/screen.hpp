// SPDX-License-Identifier: Apache-2.0
// Lines on a terminal or in a pipe, and on a terminal the block of lines below them.
#pragma once

#include "line_writer.hpp"
#include "screen_block.hpp"

#include <dflash/core/log.hpp>
#include <dflash/report/console.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::report {

/// What a terminal can do, as far as the environment tells.
struct TerminalKind {
    bool moves_cursor = false;  ///< not TERM=dumb, not unknown
    bool colours = false;       ///< and nobody asks for none (NO_COLOR, no-color.org)
    Resizing resizing = Resizing::Cuts;
};

/// From TERM, NO_COLOR, TMUX, STY and XTERM_VERSION of this process.
TerminalKind terminal_kind();

/// Not thread-safe. Never waits but in flush(), and never throws but std::bad_alloc.
class Screen : NonCopyable {
  public:
    Screen(int descriptor, TerminalKind kind);

    void write_line(LogLevel level, std::string_view line);

    std::optional<BlockSpace> block_space();
    void show_block(std::vector<std::string> lines);
    void clear_block();

    void flush(std::chrono::milliseconds timeout) { writer_.flush(timeout); }

    bool is_gone() const { return writer_.is_gone(); }

    bool is_terminal() const { return is_terminal_; }

    /// Of the terminal; columns are 80 if it does not say, rows 24.
    ScreenSize size() const;

  private:
    void look_around();
    bool in_foreground() const;
    std::vector<std::string> block_for(ScreenSize size) const;

    int descriptor_;
    TerminalKind kind_;
    bool is_terminal_;
    LineWriter writer_;
    ScreenBlock block_;               // what stands on the screen
    std::vector<std::string> lines_;  // what should stand there
    unsigned seen_continued_;
};

}  // namespace dflash::report
