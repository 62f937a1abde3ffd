// SPDX-License-Identifier: Apache-2.0
#include "../io/expect_error.hpp"
#include "../io/file_size_limit.hpp"
#include "../io/temp_folder.hpp"

#include <dflash/report/console.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <regex>
#include <sstream>
#include <sys/ioctl.h>
#include <thread>
#include <unistd.h>

namespace dflash::report {
namespace {

using test::TempFolder;

/// Ends of a pipe, and what came through it.
class Pipe : NonCopyable {
  public:
    Pipe() {
        std::array<int, 2> ends{};
        REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
        read_end_ = ends[0];
        write_end_ = ends[1];
    }

    ~Pipe() {
        close_read_end();
        ::close(write_end_);
    }

    int write_end() const { return write_end_; }

    void close_read_end() {
        if (read_end_ >= 0) {
            ::close(read_end_);
        }
        read_end_ = -1;
    }

    /// What can be read without waiting.
    std::string read_available() const {
        std::string out;
        std::array<char, 65536> piece{};
        for (;;) {
            ::pollfd ready{.fd = read_end_, .events = POLLIN, .revents = 0};
            if (::poll(&ready, 1, 0) <= 0) {
                return out;
            }
            const ::ssize_t size = ::read(read_end_, piece.data(), piece.size());
            if (size <= 0) {
                return out;
            }
            out.append(piece.data(), static_cast<std::size_t>(size));
        }
    }

  private:
    int read_end_ = -1;
    int write_end_ = -1;
};

/// The program ignores SIGPIPE; so does a test of a closed pipe.
class IgnoredSigpipe : NonCopyable {
  public:
    IgnoredSigpipe() : former_(std::signal(SIGPIPE, SIG_IGN)) {}

    ~IgnoredSigpipe() { std::signal(SIGPIPE, former_); }

  private:
    void (*former_)(int);
};

/// The lines of a console.log without their times, which must all be there.
std::string unstamped(const std::string& path) {
    static const std::regex pattern(R"((\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) (.*))");
    std::string out;
    std::istringstream lines(test::read_text(path));
    for (std::string line; std::getline(lines, line);) {
        CAPTURE(line);
        std::smatch match;
        REQUIRE(std::regex_match(line, match, pattern));
        out += match[2].str() + "\n";
    }
    return out;
}

TEST_SUITE_BEGIN("report.console");

TEST_CASE("lines go to the descriptor, and with their time into the file, also earlier ones") {
    const TempFolder folder;
    const Pipe pipe;
    {
        Console console(pipe.write_end());
        console.install();
        CHECK(console.log_path().empty());
        log_info("target {}", 1);
        log_warning("two\nlines");
        console.attach(folder / "console.log");
        CHECK(console.log_path() == folder / "console.log");
        log_line(LogLevel::Error, "bad");
        log_debug("detail");
        console.print("plain");
        CHECK(console.warnings().count == 1);
        CHECK(console.warnings().last == "two\nlines");
        CHECK_FALSE(console.is_terminal());
        CHECK(console.width() == 80);
    }
    log_debug("not for a console that is gone");
    CHECK(pipe.read_available() == "target 1\nwarning: two\nwarning: lines\nerror: bad\nplain\n");
    CHECK(unstamped(folder / "console.log") ==
          "target 1\nwarning: two\nwarning: lines\nerror: bad\ndebug: detail\nplain\n");
}

TEST_CASE("the former sink is back when a console ends") {
    std::vector<std::string> seen;
    const LogSink former =
        set_log_sink([&seen](LogLevel, std::string_view line) { seen.emplace_back(line); });
    {
        const Pipe pipe;
        Console console(pipe.write_end());
        console.install();
        console.install();
        log_info("inside");
    }
    log_info("outside");
    set_log_sink(former);
    CHECK(seen == std::vector<std::string>{"outside"});
}

TEST_CASE("a resumed run appends to its file") {
    const TempFolder folder;
    for (const char* text : {"first", "second"}) {
        const Pipe pipe;
        Console console(pipe.write_end());
        console.attach(folder / "console.log");
        console.print(text);
    }
    CHECK(unstamped(folder / "console.log") == "first\nsecond\n");
}

TEST_CASE("a file that cannot be opened is a storage error, and lines stay for another") {
    const TempFolder folder;
    const Pipe pipe;
    Console console(pipe.write_end());
    console.print("early");
    test::expect_error(ErrorKind::Storage, {folder / "none/console.log"}, [&] {
        console.attach(folder / "none/console.log");
    });
    console.attach(folder / "console.log");
    CHECK(unstamped(folder / "console.log") == "early\n");
}

TEST_CASE("of very many early lines the last are kept and the others counted") {
    const TempFolder folder;
    const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    {
        Console console(null);
        for (int i = 0; i < 5000; ++i) {
            console.print(fmt::format("line {}", i));
        }
        console.attach(folder / "console.log");
    }
    ::close(null);
    const std::string text = unstamped(folder / "console.log");
    CHECK(text.starts_with("(904 lines lost here)\nline 904\n"));
    CHECK(text.ends_with("line 4999\n"));
}

TEST_CASE("a pipe whose reader is gone ends nothing; the file goes on") {
    const IgnoredSigpipe ignored;
    const TempFolder folder;
    Pipe pipe;
    Console console(pipe.write_end());
    console.attach(folder / "console.log");
    console.print("one");
    pipe.close_read_end();
    console.print("two");
    console.print("three");
    console.flush();
    CHECK(unstamped(folder / "console.log") ==
          "one\ntwo\nwarning: standard output is gone; lines go on in console.log only\nthree\n");
}

TEST_CASE("a descriptor that was never open is left alone, whatever takes its number later") {
    const TempFolder folder;
    const int number = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    ::close(number);
    Console console(number);
    console.attach(folder / "console.log");
    const int other = ::open((folder / "other").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    console.print("one");
    console.flush();
    ::close(other);
    CHECK(test::read_text(folder / "other").empty());
    CHECK(unstamped(folder / "console.log").starts_with("one\n"));
}

TEST_CASE("a pipe that nobody reads stalls nothing; what it misses is counted") {
    const TempFolder folder;
    const Pipe pipe;
    const auto start = std::chrono::steady_clock::now();
    {
        Console console(pipe.write_end());
        console.attach(folder / "console.log");
        const std::string line(1000, 'x');
        for (int i = 0; i < 1000; ++i) {
            console.print(line);
        }
        CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
        std::string shown = pipe.read_available();
        console.print("end");
        shown += pipe.read_available();
        for (int i = 0; i < 20; ++i) {
            console.flush();
            shown += pipe.read_available();
        }
        // 64 KiB in the pipe and 256 KiB kept, of 1 MB.
        const auto lines = std::count(shown.begin(), shown.end(), '\n');
        CHECK(lines > 300);
        CHECK(lines < 400);
        std::smatch match;
        REQUIRE(std::regex_search(shown, match, std::regex(R"(\n\((\d+) lines left out here)")));
        CHECK(lines - 1 + std::stol(match[1].str()) == 1001);
    }
    const std::string text = unstamped(folder / "console.log");
    CHECK(std::count(text.begin(), text.end(), '\n') == 1001);
}

TEST_CASE("a terminal gets lines, has a width, and may hang up") {
    const IgnoredSigpipe ignored;
    const TempFolder folder;
    const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
    REQUIRE(master >= 0);
    REQUIRE(::grantpt(master) == 0);
    REQUIRE(::unlockpt(master) == 0);
    const int terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
    REQUIRE(terminal >= 0);
    const ::winsize size{.ws_row = 24, .ws_col = 101, .ws_xpixel = 0, .ws_ypixel = 0};
    REQUIRE(::ioctl(master, TIOCSWINSZ, &size) == 0);
    {
        Console console(terminal);
        console.attach(folder / "console.log");
        CHECK(console.is_terminal());
        CHECK(console.width() == 101);
        console.print("hello");
        std::array<char, 100> read{};
        CHECK(::read(master, read.data(), read.size()) == 7);
        CHECK(std::string_view(read.data(), 7) == "hello\r\n");
        // Nobody reads: more than a terminal holds must not stall.
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < 200; ++i) {
            console.print(std::string(100, 'y'));
        }
        CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
        ::close(master);
        console.print("after");
        console.flush();
        console.print("more");
    }
    ::close(terminal);
    CHECK(unstamped(folder / "console.log")
              .ends_with("after\nwarning: standard output is gone; lines go on in console.log "
                         "only\nmore\n"));
}

TEST_CASE("a full disk under the file is told on the terminal, and the loss in the file") {
    const TempFolder folder;
    const Pipe pipe;
    Console console(pipe.write_end());
    console.attach(folder / "console.log");
    console.print("one");
    {
        const test::FileSizeLimit limit(30);
        console.print("two");
        console.print("three");
    }
    console.print("four");
    CHECK(pipe.read_available() == "one\ntwo\nwarning: cannot write " + (folder / "console.log") +
                                       ": File too large; lines are lost there until it works "
                                       "again\nthree\nfour\n");
    const std::string text = test::read_text(folder / "console.log");
    CHECK(text.find("(2 lines lost here)\n") != std::string::npos);
    CHECK(text.ends_with("Z four\n"));
}

TEST_CASE("threads do not mix their lines") {
    const TempFolder folder;
    const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    {
        Console console(null);
        console.attach(folder / "console.log");
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; ++t) {
            threads.emplace_back([&console, t] {
                for (int i = 0; i < 500; ++i) {
                    console.print(std::string(50, static_cast<char>('a' + t)));
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
    }
    ::close(null);
    std::istringstream lines(unstamped(folder / "console.log"));
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
        CHECK(line == std::string(50, line.empty() ? ' ' : line[0]));
    }
    CHECK(count == 2000);
}

TEST_CASE("the console of the program is one") {
    CHECK(&console() == &console());
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::report
