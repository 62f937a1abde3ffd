// SPDX-License-Identifier: Apache-2.0
#include "fake_terminal.hpp"

#include <algorithm>
#include <doctest/doctest.h>

namespace dflash::test {

FakeTerminal::FakeTerminal(int columns, int rows)
    : columns_(columns), rows_(rows), lines_(static_cast<std::size_t>(rows)) {}

std::size_t FakeTerminal::top() const {
    return lines_.size() - static_cast<std::size_t>(rows_);
}

FakeTerminal::Row& FakeTerminal::at_cursor() {
    return lines_[top() + static_cast<std::size_t>(cursor_row_)];
}

void FakeTerminal::line_feed() {
    if (cursor_row_ + 1 < rows_) {
        ++cursor_row_;
    } else {
        lines_.emplace_back();
    }
}

void FakeTerminal::erase_row(std::size_t index) {
    lines_[index] = {};
    if (index > 0) {
        lines_[index - 1].goes_on = false;
    }
}

void FakeTerminal::erase_below() {
    if (cursor_row_ == 0) {
        lines_.resize(lines_.size() + static_cast<std::size_t>(rows_));
        return;
    }
    for (std::size_t i = top() + static_cast<std::size_t>(cursor_row_); i < lines_.size(); ++i) {
        erase_row(i);
    }
}

void FakeTerminal::write(std::string_view bytes) {
    while (!bytes.empty()) {
        if (bytes[0] == '\033') {
            const std::size_t end = bytes.find_first_not_of("[0123456789;", 1);
            REQUIRE(end != std::string_view::npos);
            const std::string_view parameters = bytes.substr(2, end - 2);
            switch (bytes[end]) {
                case 'A': {
                    const int rows = parameters.empty() ? 1 : std::stoi(std::string(parameters));
                    cursor_row_ = std::max(cursor_row_ - rows, 0);
                    break;
                }
                case 'K':
                    REQUIRE(parameters.empty());
                    REQUIRE(cursor_column_ == 0);
                    erase_row(top() + static_cast<std::size_t>(cursor_row_));
                    break;
                case 'J':
                    REQUIRE(parameters.empty());
                    REQUIRE(cursor_column_ == 0);
                    erase_below();
                    break;
                case 'm':
                    attributes_set_ = !parameters.empty() && parameters != "0";
                    break;
                default:
                    FAIL("an escape sequence that the program should not use");
            }
            bytes.remove_prefix(end + 1);
            continue;
        }
        const char c = bytes[0];
        bytes.remove_prefix(1);
        if (c == '\r') {
            cursor_column_ = 0;
        } else if (c == '\n') {
            cursor_column_ = 0;  // the terminal's driver makes CR LF of it
            line_feed();
        } else {
            if (cursor_column_ == columns_) {
                at_cursor().goes_on = true;
                cursor_column_ = 0;
                line_feed();
            }
            std::string& text = at_cursor().text;
            text.resize(std::max(text.size(), static_cast<std::size_t>(cursor_column_) + 1), ' ');
            text[static_cast<std::size_t>(cursor_column_++)] = c;
        }
    }
}

void FakeTerminal::resize(int columns, int rows) {
    // Rows below the cursor go first, then rows of the top become scrollback.
    while (rows_ > rows && cursor_row_ + 1 < rows_) {
        lines_.pop_back();
        --rows_;
    }
    std::size_t cursor = top() + static_cast<std::size_t>(cursor_row_);
    std::vector<Row> wrapped;
    std::size_t cursor_now = 0;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
        std::string line = lines_[i].text;
        bool has_cursor = i == cursor;
        while (lines_[i].goes_on && i + 1 < lines_.size()) {
            const std::size_t missing = static_cast<std::size_t>(columns_) - lines_[i].text.size();
            line.append(missing, ' ');
            line += lines_[++i].text;
            has_cursor = has_cursor || i == cursor;
        }
        const auto width = static_cast<std::size_t>(columns);
        do {
            wrapped.push_back({line.substr(0, width), line.size() > width});
            line.erase(0, width);
        } while (!line.empty());
        if (has_cursor) {
            cursor_now = wrapped.size() - 1;
        }
    }
    columns_ = columns;
    rows_ = rows;
    lines_ = std::move(wrapped);
    while (std::ssize(lines_) < rows_) {
        lines_.emplace_back();
    }
    cursor_row_ = std::max(static_cast<int>(cursor_now) - static_cast<int>(top()), 0);
}

std::vector<std::string> FakeTerminal::all() const {
    std::vector<std::string> rows;
    for (const Row& row : lines_) {
        rows.push_back(row.text);
    }
    while (!rows.empty() && rows.back().empty()) {
        rows.pop_back();
    }
    return rows;
}

std::vector<std::string> FakeTerminal::screen() const {
    std::vector<std::string> rows;
    for (std::size_t i = top(); i < lines_.size(); ++i) {
        rows.push_back(lines_[i].text);
    }
    while (!rows.empty() && rows.back().empty()) {
        rows.pop_back();
    }
    return rows;
}

}  // namespace dflash::test
