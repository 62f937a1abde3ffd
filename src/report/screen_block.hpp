// SPDX-License-Identifier: Apache-2.0
// Lines at the end of a terminal that are drawn again and again: what to send to remove them.
//
// The cursor always rests at the beginning of the line below them, so whatever else writes to the
// terminal (a shell after a kill, a library) begins a line of its own. Only lines, "up", "erase
// line" and "erase below" are used: no scroll regions and no second screen, so the scrollback stays
// as it is.
//
// When a terminal is made narrower, most (tmux, kitty, the VTE and Windows terminals) wrap the
// lines that are there, and unwrap them when it is made wider; then one of our lines takes several
// rows, and some of them may be out of reach above the screen. Those stay part of what is to be
// removed: when the screen grows again, they come back into reach.
#pragma once

#include <string>
#include <vector>

namespace dflash::report {

struct ScreenSize {
    int columns = 80;
    int rows = 24;

    friend bool operator==(const ScreenSize&, const ScreenSize&) = default;
};

/// What a terminal does with the lines that are there when its width changes.
enum class Resizing {
    Cuts,          ///< nothing: what is too long is not seen
    Wraps,         ///< wraps them anew
    WrapsInPlace,  ///< and the cursor stays in its row of the screen (tmux)
};

/// What stands on the screen above the cursor. Not thread-safe; writes nothing itself.
class ScreenBlock {
  public:
    explicit ScreenBlock(Resizing resizing) : resizing_(resizing) {}

    bool empty() const { return widths_.empty(); }

    /// What removes the lines from a screen that now has this size; empty if there are none.
    std::string erase_text(ScreenSize size) const;

    /// That text was sent: only lines out of reach are left.
    void erased(ScreenSize size);

    /// These lines were sent, each with a line end.
    void drawn(const std::vector<std::string>& lines, ScreenSize size);

    /// Something else was written below: what is above the cursor now stays.
    void forget();

  private:
    struct Reach {
        std::size_t lines;  // the last ones, which are on the screen as a whole
        int rows;           // that they take
    };

    Reach reach(ScreenSize size) const;
    int rows_above_cursor(ScreenSize size) const;

    Resizing resizing_;
    std::vector<int> widths_;  // columns of each line above the cursor, from top to bottom
    ScreenSize size_;          // when something was last sent
    int rows_above_ = -1;      // rows above the cursor at that size at most; -1: unknown
};

}  // namespace dflash::report
