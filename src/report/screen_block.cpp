// SPDX-License-Identifier: Apache-2.0
#include "screen_block.hpp"

#include "text_width.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace dflash::report {

int ScreenBlock::rows_above_cursor(ScreenSize size) const {
    const int most = std::max(size.rows - 1, 0);
    if (rows_above_ < 0 || (size.columns != size_.columns && resizing_ == Resizing::Wraps)) {
        return most;
    }
    // A terminal that grows may take rows back from its scrollback.
    return std::min(rows_above_ + std::max(size.rows - size_.rows, 0), most);
}

ScreenBlock::Reach ScreenBlock::reach(ScreenSize size) const {
    const int rows_above = rows_above_cursor(size);
    Reach reach{.lines = 0, .rows = 0};
    while (reach.lines < widths_.size()) {
        const int width = widths_[widths_.size() - 1 - reach.lines];
        const int columns = std::max(size.columns, 1);
        const int rows =
            resizing_ == Resizing::Cuts ? 1 : std::max((width + columns - 1) / columns, 1);
        if (reach.rows + rows > rows_above) {
            break;
        }
        ++reach.lines;
        reach.rows += rows;
    }
    return reach;
}

std::string ScreenBlock::erase_text(ScreenSize size) const {
    if (widths_.empty()) {
        return {};
    }
    // The first row is erased by itself: tmux moves the whole screen into the scrollback when it is
    // told to erase all of it (screen-write.c, screen_write_clearendofscreen).
    const int rows = reach(size).rows;
    return rows > 0 ? fmt::format("\r\033[{}A\033[K\n\033[J\033[A", rows) : std::string("\r\033[K");
}

void ScreenBlock::erased(ScreenSize size) {
    const Reach gone = reach(size);
    const int rows_above = rows_above_cursor(size);
    widths_.resize(widths_.size() - gone.lines);
    rows_above_ = rows_above - gone.rows;
    size_ = size;
}

void ScreenBlock::drawn(const std::vector<std::string>& lines, ScreenSize size) {
    for (const std::string& line : lines) {
        widths_.push_back(display_width(line));
    }
    const int rows_above = rows_above_cursor(size);
    rows_above_ = std::min(rows_above + static_cast<int>(lines.size()), std::max(size.rows - 1, 0));
    size_ = size;
}

void ScreenBlock::forget() {
    widths_.clear();
    rows_above_ = -1;
}

}  // namespace dflash::report
