// SPDX-License-Identifier: Apache-2.0
// A terminal in memory: what is on the screen and in the scrollback after a program has written to
// it. Knows what dflash uses: text, CR, LF, "up", "erase below" and colours; anything else fails
// the test. Wraps lines anew when its width changes, and takes lines back from the scrollback when
// it grows, as tmux does.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dflash::test {

class FakeTerminal {
  public:
    FakeTerminal(int columns, int rows);

    void write(std::string_view bytes);
    void resize(int columns, int rows);

    /// Rows without spaces at their ends; from the first one of the scrollback to the last one that
    /// is not empty.
    std::vector<std::string> all() const;

    /// The rows of the screen, without empty ones at the end.
    std::vector<std::string> screen() const;

    bool attributes_set() const { return attributes_set_; }

    int cursor_row() const { return cursor_row_; }

  private:
    struct Row {
        std::string text;
        bool goes_on = false;  // the next row continues the line
    };

    void line_feed();
    void erase_row(std::size_t index);
    void erase_below();
    std::size_t top() const;  // index of the first row of the screen
    Row& at_cursor();

    int columns_;
    int rows_;
    std::vector<Row> lines_;  // scrollback and screen
    int cursor_row_ = 0;      // on the screen
    int cursor_column_ = 0;
    bool attributes_set_ = false;
};

}  // namespace dflash::test
