// SPDX-License-Identifier: Apache-2.0
#include "screen_block.hpp"

#include "fake_terminal.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <random>

namespace dflash::report {
namespace {

using Lines = std::vector<std::string>;

/// A block on a terminal, drawn as the console draws it.
class Drawing {
  public:
    Drawing(int columns, int rows) : size_{columns, rows}, terminal_(columns, rows) {}

    void resize(int columns, int rows) {
        size_ = {columns, rows};
        terminal_.resize(columns, rows);
    }

    /// Draws at most rows - 1 lines, cut to columns - 1; remembers what it drew.
    void draw(const Lines& lines) {
        shown_.clear();
        for (const std::string& line : lines) {
            if (std::ssize(shown_) < size_.rows - 1) {
                shown_.push_back(line.substr(0, static_cast<std::size_t>(size_.columns - 1)));
            }
        }
        std::string text = block_.erase_text(size_);
        for (const std::string& line : shown_) {
            text += line + "\r\n";
        }
        terminal_.write(text);
        block_.erased(size_);
        block_.drawn(shown_, size_);
    }

    void print(const std::string& line) {
        terminal_.write(block_.erase_text(size_) + line + "\n");
        block_.forget();
        draw(Lines(shown_));
    }

    const Lines& shown() const { return shown_; }

    const test::FakeTerminal& terminal() const { return terminal_; }

  private:
    ScreenSize size_;
    test::FakeTerminal terminal_;
    ScreenBlock block_{Resizing::WrapsInPlace};
    Lines shown_;
};

/// Lines that can be told apart: "name-3 ................".
Lines block(const std::string& name, int count, int width) {
    Lines lines;
    for (int i = 0; i < count; ++i) {
        std::string line = fmt::format("{}-{} ", name, i);
        line.resize(static_cast<std::size_t>(std::max<int>(width, static_cast<int>(line.size()))),
                    '.');
        lines.push_back(line);
    }
    return lines;
}

int count_of(const Lines& rows, const std::string& part) {
    return static_cast<int>(std::ranges::count_if(
        rows, [&](const std::string& row) { return row.find(part) != std::string::npos; }));
}

}  // namespace

TEST_SUITE("report.screen_block") {
    TEST_CASE("a block is drawn in place, below lines that are printed") {
        Drawing drawing(80, 24);
        drawing.print("first");
        drawing.draw(block("a", 3, 60));
        drawing.draw(block("b", 5, 60));
        drawing.print("second");
        drawing.draw(block("c", 2, 60));
        Lines expected = {"first", "second"};
        expected.insert(expected.end(), drawing.shown().begin(), drawing.shown().end());
        CHECK(drawing.terminal().all() == expected);
    }

    TEST_CASE("nothing but printed lines goes into the scrollback") {
        Drawing drawing(80, 10);
        for (int i = 0; i < 100; ++i) {
            drawing.draw(block("b", 9, 79));
            drawing.print(fmt::format("line {}", i));
        }
        drawing.draw({});
        Lines expected;
        for (int i = 0; i < 100; ++i) {
            expected.push_back(fmt::format("line {}", i));
        }
        CHECK(drawing.terminal().all() == expected);
    }

    TEST_CASE("a block that a narrower terminal has wrapped is removed whole") {
        Drawing drawing(80, 24);
        for (int i = 0; i < 40; ++i) {
            drawing.print(fmt::format("line {}", i));
        }
        drawing.draw(block("old", 7, 79));
        drawing.resize(40, 24);
        drawing.draw(block("new", 7, 79));
        CHECK(count_of(drawing.terminal().all(), "old") == 0);
        CHECK(count_of(drawing.terminal().all(), "new") == 7);
        CHECK(count_of(drawing.terminal().all(), "line") == 40);
        drawing.resize(80, 24);
        drawing.draw(block("last", 7, 79));
        CHECK(count_of(drawing.terminal().all(), "new") == 0);
        CHECK(count_of(drawing.terminal().all(), "line") == 40);
    }

    TEST_CASE("on a screen that is not full yet, nothing of a wrapped block stays on the screen") {
        for (const int lines_before : {0, 3, 10}) {
            CAPTURE(lines_before);
            Drawing drawing(80, 24);
            for (int i = 0; i < lines_before; ++i) {
                drawing.print(fmt::format("line {}", i));
            }
            drawing.draw(block("old", 7, 79));
            drawing.resize(40, 24);
            drawing.draw(block("new", 7, 79));
            CHECK(count_of(drawing.terminal().screen(), "old") == 0);
            CHECK(count_of(drawing.terminal().all(), "new") == 7);
            CHECK(count_of(drawing.terminal().all(), "line") == lines_before);
        }
    }

    TEST_CASE("what a small terminal pushed out of reach is removed when it comes back") {
        Drawing drawing(80, 24);
        for (int i = 0; i < 40; ++i) {
            drawing.print(fmt::format("line {}", i));
        }
        drawing.draw(block("old", 9, 79));
        drawing.resize(40, 10);  // 18 rows now, of which 9 can be on the screen
        drawing.draw(block("new", 6, 79));
        CHECK(count_of(drawing.terminal().screen(), "new") == 6);
        CHECK(count_of(drawing.terminal().screen(), "old") == 0);
        drawing.draw(block("again", 6, 79));
        CHECK(count_of(drawing.terminal().all(), "new") == 0);
        drawing.resize(80, 24);
        drawing.draw(block("last", 9, 79));
        CHECK(count_of(drawing.terminal().all(), "old") == 0);
        CHECK(count_of(drawing.terminal().all(), "again") == 0);
        CHECK(count_of(drawing.terminal().all(), "last") == 9);
        CHECK(count_of(drawing.terminal().all(), "line") == 40);
    }

    TEST_CASE("a terminal that does not wrap anew loses no printed line") {
        ScreenBlock block(Resizing::Cuts);
        block.drawn({std::string(79, 'x'), std::string(79, 'y')}, {80, 24});
        CHECK(block.erase_text({40, 24}) == "\r\033[2A\033[K\n\033[J\033[A");
    }

    TEST_CASE("through any resizes and prints, printed lines stay and the newest block is whole") {
        std::mt19937 random(7);
        const auto draw_of = [&](int low, int high) {
            return std::uniform_int_distribution(low, high)(random);
        };
        for (int round = 0; round < 300; ++round) {
            Drawing drawing(80, 24);
            int printed = 0;
            for (int action = 0; action < 30; ++action) {
                switch (draw_of(0, 3)) {
                    case 0:
                        drawing.print(fmt::format("<{}>", printed++));
                        break;
                    case 1:
                        drawing.resize(draw_of(20, 120), draw_of(3, 40));
                        break;
                    default:
                        break;
                }
                drawing.draw(block(fmt::format("b{}", action), draw_of(1, 10), draw_of(1, 100)));
                const Lines screen = drawing.terminal().screen();
                REQUIRE(screen.size() >= drawing.shown().size());
                CHECK(
                    std::equal(drawing.shown().rbegin(), drawing.shown().rend(), screen.rbegin()));
            }
            const Lines all = drawing.terminal().all();
            std::string text;
            for (const std::string& row : all) {
                text += row;
            }
            std::size_t at = 0;
            for (int i = 0; i < printed; ++i) {
                CAPTURE(i);
                at = text.find(fmt::format("<{}>", i), at);
                REQUIRE(at != std::string::npos);
            }
        }
    }
}

}  // namespace dflash::report
