// SPDX-License-Identifier: Apache-2.0
// The block of the console on pseudo-terminals.
#include "../io/temp_folder.hpp"
#include "fake_terminal.hpp"

#include <dflash/core/error.hpp>
#include <dflash/report/console.hpp>
#include <dflash/report/failure_report.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <optional>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

namespace dflash::report {
namespace {

using Lines = std::vector<std::string>;

/// Sets a variable of the environment, or removes it, for as long as it lives.
class Variable : NonCopyable {
  public:
    Variable(const char* name, const char* value) : name_(name) {
        if (const char* former = std::getenv(name)) {
            former_ = former;
        }
        value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
    }

    ~Variable() { former_ ? ::setenv(name_, former_->c_str(), 1) : ::unsetenv(name_); }

  private:
    const char* name_;
    std::optional<std::string> former_;
};

/// A pseudo-terminal and what its screen shows.
class Terminal : NonCopyable {
  public:
    Terminal(int columns, int rows) : screen_(columns, rows) {
        master_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        REQUIRE(master_ >= 0);
        REQUIRE(::grantpt(master_) == 0);
        REQUIRE(::unlockpt(master_) == 0);
        slave_ = ::open(::ptsname(master_), O_RDWR | O_NOCTTY | O_CLOEXEC);
        REQUIRE(slave_ >= 0);
        set_size(columns, rows);
    }

    ~Terminal() {
        hang_up();
        ::close(slave_);
    }

    int descriptor() const { return slave_; }

    void resize(int columns, int rows) {
        read();
        set_size(columns, rows);
        screen_.resize(columns, rows);
    }

    /// Takes what was written, and returns what the screen and the scrollback hold.
    Lines read() {
        std::array<char, 4096> piece{};
        for (;;) {
            ::pollfd ready{.fd = master_, .events = POLLIN, .revents = 0};
            if (::poll(&ready, 1, 0) <= 0) {
                break;
            }
            const ::ssize_t size = ::read(master_, piece.data(), piece.size());
            if (size <= 0) {
                break;
            }
            const std::string_view text(piece.data(), static_cast<std::size_t>(size));
            bytes_ += text;
            screen_.write(text);
        }
        return screen_.all();
    }

    const std::string& bytes() const { return bytes_; }

    const test::FakeTerminal& screen() const { return screen_; }

    void hang_up() {
        if (master_ >= 0) {
            ::close(master_);
        }
        master_ = -1;
    }

    /// What Ctrl-S and Ctrl-Q do.
    void stop(bool stopped) const { ::tcflow(slave_, stopped ? TCOOFF : TCOON); }

  private:
    void set_size(int columns, int rows) const {
        const ::winsize size{.ws_row = static_cast<unsigned short>(rows),
                             .ws_col = static_cast<unsigned short>(columns),
                             .ws_xpixel = 0,
                             .ws_ypixel = 0};
        REQUIRE(::ioctl(master_, TIOCSWINSZ, &size) == 0);
    }

    int master_ = -1;
    int slave_ = -1;
    test::FakeTerminal screen_;
    std::string bytes_;
};

/// The environment of a usual terminal.
struct UsualTerminal {
    Variable term{"TERM", "xterm-256color"};
    Variable no_color{"NO_COLOR", nullptr};
    Variable tmux{"TMUX", nullptr};
    Variable sty{"STY", nullptr};
    Variable xterm{"XTERM_VERSION", nullptr};
};

}  // namespace

TEST_SUITE("report.block") {
    TEST_CASE("the block stays below the lines, and goes with the console") {
        const UsualTerminal environment;
        Terminal terminal(80, 24);
        {
            Console console(terminal.descriptor());
            console.print("one");
            console.show_block({"block 1", "block 2"});
            console.print("two\nthree");
            CHECK(terminal.read() == Lines{"one", "two", "three", "block 1", "block 2"});
            console.show_block({"block 3"});
            CHECK(terminal.read() == Lines{"one", "two", "three", "block 3"});
        }
        CHECK(terminal.read() == Lines{"one", "two", "three"});
        CHECK_FALSE(terminal.screen().attributes_set());
    }

    TEST_CASE("a block that was cleared does not come back with the next line") {
        const UsualTerminal environment;
        Terminal terminal(80, 24);
        Console console(terminal.descriptor());
        console.show_block({"block"});
        console.clear_block();
        console.print("one");
        CHECK(terminal.read() == Lines{"one"});
    }

    TEST_CASE("the block is not in the log file") {
        const UsualTerminal environment;
        const test::TempFolder folder;
        Terminal terminal(80, 24);
        Console console(terminal.descriptor());
        console.attach(folder / "console.log");
        console.show_block({"block"});
        console.print("one");
        const std::string text = test::read_text(folder / "console.log");
        CHECK(text.find("block") == std::string::npos);
        CHECK(text.ends_with("Z one\n"));
    }

    TEST_CASE("a block is cut to the room there is, in columns and lines") {
        const UsualTerminal environment;
        Terminal terminal(20, 5);
        Console console(terminal.descriptor());
        const auto space = console.block_space();
        REQUIRE(space);
        CHECK(space->columns == 19);
        CHECK(space->lines == 4);
        console.show_block(Lines(12, std::string(30, 'x')));
        CHECK(terminal.read() == Lines(4, std::string(19, 'x')));
        terminal.resize(80, 40);
        CHECK(console.block_space()->lines == kMaxBlockLines);
        console.show_block(Lines(12, std::string(30, 'x')));
        CHECK(terminal.read() == Lines(10, std::string(30, 'x')));
        terminal.resize(80, 1);
        CHECK_FALSE(console.block_space());
    }

    TEST_CASE("after a resize nothing of the former block is left") {
        const UsualTerminal environment;
        Terminal terminal(80, 24);
        Console console(terminal.descriptor());
        const auto lines = [](int count) {
            Lines all;
            for (int i = 0; i < count; ++i) {
                all.push_back(fmt::format("line {}", i));
            }
            return all;
        };
        for (const std::string& line : lines(30)) {
            console.print(line);
        }
        console.show_block(Lines(5, std::string(70, 'o')));
        terminal.resize(30, 24);
        console.print("line 30");
        Lines expected = lines(31);
        expected.insert(expected.end(), 5, std::string(29, 'o'));
        CHECK(terminal.read() == expected);
        terminal.resize(90, 30);
        console.show_block({"n"});
        expected = lines(31);
        expected.emplace_back("n");
        CHECK(terminal.read() == expected);
    }

    TEST_CASE("there is no block in a pipe, on a dumb terminal, and where none is known") {
        std::array<int, 2> ends{};
        REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
        {
            const UsualTerminal environment;
            Console console(ends[1]);
            CHECK_FALSE(console.block_space());
            console.show_block({"block"});
            console.print("one");
        }
        std::array<char, 100> read{};
        CHECK(::read(ends[0], read.data(), read.size()) == 4);
        ::close(ends[0]);
        ::close(ends[1]);

        for (const char* term : {"dumb", "", static_cast<const char*>(nullptr)}) {
            const UsualTerminal environment;
            const Variable unusual("TERM", term);
            Terminal terminal(80, 24);
            Console console(terminal.descriptor());
            CHECK_FALSE(console.block_space());
            console.show_block({"block"});
            log_line(LogLevel::Info, "");
            console.print("one");
            CHECK(terminal.read() == Lines{"one"});
            CHECK(terminal.bytes() == "one\r\n");
        }
    }

    TEST_CASE("warnings are coloured on a terminal, unless NO_COLOR asks for none") {
        for (const bool asked : {false, true}) {
            CAPTURE(asked);
            const UsualTerminal environment;
            const Variable no_color("NO_COLOR", asked ? "1" : nullptr);
            Terminal terminal(80, 24);
            Console console(terminal.descriptor());
            console.install();
            CHECK(console.block_space()->colours == !asked);
            log_warning("hot");
            log_info("cool");
            CHECK(terminal.read() == Lines{"warning: hot", "cool"});
            CHECK((terminal.bytes().find('\033') == std::string::npos) == asked);
            CHECK_FALSE(terminal.screen().attributes_set());
        }
    }

    TEST_CASE("a terminal that is stopped gets the lines later, and one block, the newest") {
        const UsualTerminal environment;
        Terminal terminal(80, 24);
        Console console(terminal.descriptor());
        console.show_block({"block 0"});
        terminal.read();
        terminal.stop(true);
        for (int i = 1; i <= 50; ++i) {
            console.show_block({fmt::format("block {}", i)});
            console.print(fmt::format("line {}", i));
        }
        terminal.stop(false);
        Lines expected;
        for (int i = 1; i <= 50; ++i) {
            expected.push_back(fmt::format("line {}", i));
        }
        expected.emplace_back("block 51");
        console.flush();
        console.show_block({"block 51"});
        console.flush();
        CHECK(terminal.read() == expected);
    }

    TEST_CASE("a terminal that is gone ends nothing") {
        const UsualTerminal environment;
        const test::TempFolder folder;
        Terminal terminal(80, 24);
        Console console(terminal.descriptor());
        console.attach(folder / "console.log");
        console.show_block({"block"});
        terminal.hang_up();
        console.show_block({"block"});
        console.print("one");
        CHECK_FALSE(console.block_space());
        console.clear_block();
        CHECK(test::read_text(folder / "console.log").ends_with("Z one\n"));
    }

    TEST_CASE("a failure ends the block for good, and is told to who listens, after its lines") {
        const UsualTerminal environment;
        Terminal terminal(80, 24);
        Console console(terminal.descriptor());
        Lines told;
        console.set_failure_listener([&](const std::exception_ptr&) { told = terminal.read(); });
        console.print("one");
        console.show_block({"block"});
        const int code = report_failure(
            std::make_exception_ptr(
                Error(ErrorKind::Storage, {.what = "w", .where = {}, .cause = {}, .hint = {}})),
            console);
        CHECK(code == 6);
        console.show_block({"block"});
        const Lines lines = terminal.read();
        CHECK(lines == told);
        REQUIRE(lines.size() == 9);
        CHECK(lines[0] == "one");
        CHECK(lines[2] == "The run failed.");
        CHECK(lines[8] == "log         -");
    }

    TEST_CASE("colours that were cut short are set back, unless the terminal is stopped") {
        const UsualTerminal environment;
        Terminal terminal(80, 24);
        const Console console(terminal.descriptor());
        REQUIRE(::write(terminal.descriptor(), "\033[33mhalf", 9) == 9);
        terminal.read();
        CHECK(terminal.screen().attributes_set());
        terminal.stop(true);
        reset_colours();  // and does not wait
        terminal.stop(false);
        reset_colours();
        terminal.read();
        CHECK_FALSE(terminal.screen().attributes_set());
    }

    TEST_CASE("after the process was stopped, the block begins below what others wrote") {
        const UsualTerminal environment;
        Terminal terminal(80, 24);
        Console console(terminal.descriptor());
        console.show_block({"block 1", "block 2"});
        terminal.read();
        REQUIRE(::write(terminal.descriptor(), "$ fg\n", 5) == 5);  // the shell
        note_continued();
        console.show_block({"block 3"});
        CHECK(terminal.read() == Lines{"block 1", "block 2", "$ fg", "block 3"});
        console.show_block({"block 4"});
        CHECK(terminal.read() == Lines{"block 1", "block 2", "$ fg", "block 4"});
    }
}

}  // namespace dflash::report
