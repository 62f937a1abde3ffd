// SPDX-License-Identifier: Apache-2.0
#include "screen.hpp"

#include "text_width.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace dflash::report {
namespace {

std::atomic<unsigned> times_continued = 0;
/// Where colours were written last; -1: nowhere.
std::atomic<int> coloured_descriptor = -1;
static_assert(std::atomic<unsigned>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

std::string_view environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string_view() : value;
}

std::string coloured(LogLevel level, std::string_view line) {
    switch (level) {
        case LogLevel::Warning:
            return fmt::format("\033[33m{}\033[m", line);
        case LogLevel::Error:
            return fmt::format("\033[31m{}\033[m", line);
        case LogLevel::Debug:
        case LogLevel::Info:
            break;
    }
    return std::string(line);
}

std::string as_text(const std::vector<std::string>& lines) {
    return lines.empty() ? std::string() : fmt::format("{}\r\n", fmt::join(lines, "\r\n"));
}

/// The last column stays free: terminals differ in where the cursor is once it was written to.
BlockSpace space_in(ScreenSize size, bool colours) {
    return {.columns = size.columns - 1,
            .lines = std::min(kMaxBlockLines, size.rows - 1),
            .colours = colours};
}

}  // namespace

TerminalKind terminal_kind() {
    const std::string_view term = environment("TERM");
    const bool moves_cursor = !term.empty() && term != "dumb";
    const bool in_tmux = !environment("TMUX").empty();
    // GNU screen, xterm and the console of Linux cut lines instead.
    const bool cuts = term == "linux" || term.starts_with("vt") ||
                      !environment("XTERM_VERSION").empty() || !environment("STY").empty();
    return {.moves_cursor = moves_cursor,
            .colours = moves_cursor && environment("NO_COLOR").empty(),
            .resizing = in_tmux ? Resizing::WrapsInPlace
                        : cuts  ? Resizing::Cuts
                                : Resizing::Wraps};
}

void note_continued() noexcept {
    times_continued.fetch_add(1);
}

void reset_colours() noexcept {
    const int descriptor = coloured_descriptor.load();
    ::pollfd ready{.fd = descriptor, .events = POLLOUT, .revents = 0};
    if (descriptor >= 0 && ::poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT) != 0) {
        constexpr std::string_view kReset = "\033[m";
        [[maybe_unused]] const auto size = ::write(descriptor, kReset.data(), kReset.size());
    }
}

Screen::Screen(int descriptor, TerminalKind kind)
    : descriptor_(descriptor),
      kind_(kind),
      is_terminal_(::isatty(descriptor) != 0),
      writer_(descriptor),
      block_(kind.resizing),
      seen_continued_(times_continued.load()) {
    if (is_terminal_ && kind_.colours) {
        coloured_descriptor = descriptor;
    }
}

ScreenSize Screen::size() const {
    ScreenSize size;
    ::winsize window{};
    if (::ioctl(descriptor_, TIOCGWINSZ, &window) == 0) {
        size.columns = window.ws_col > 0 ? window.ws_col : size.columns;
        size.rows = window.ws_row > 0 ? window.ws_row : size.rows;
    }
    return size;
}

/// In the background the screen is the shell's; nothing may be drawn over what it writes.
bool Screen::in_foreground() const {
    const ::pid_t group = ::tcgetpgrp(descriptor_);
    return group <= 0 || group == ::getpgrp();  // no group: not our controlling terminal
}

/// Whatever others have written since, is not ours to remove.
void Screen::look_around() {
    const unsigned continued = times_continued.load();
    if (std::exchange(seen_continued_, continued) != continued ||
        (!block_.empty() && !in_foreground())) {
        block_.forget();
    }
}

std::optional<BlockSpace> Screen::block_space() {
    if (!is_terminal_ || !kind_.moves_cursor || writer_.is_gone() || !in_foreground()) {
        return std::nullopt;
    }
    const BlockSpace space = space_in(size(), kind_.colours);
    return space.columns > 0 && space.lines > 0 ? std::optional(space) : std::nullopt;
}

/// The lines that fit.
std::vector<std::string> Screen::block_for(ScreenSize size) const {
    const BlockSpace space = space_in(size, kind_.colours);
    std::vector<std::string> fitting;
    for (const std::string& line : lines_) {
        if (std::ssize(fitting) < space.lines) {
            fitting.push_back(cut_to_width(line, space.columns));
        }
    }
    return fitting;
}

void Screen::write_line(LogLevel level, std::string_view line) {
    const bool colours = is_terminal_ && kind_.colours;
    const std::string text = colours ? coloured(level, line) : std::string(line);
    if (lines_.empty() && block_.empty()) {
        writer_.write_line(text);
        return;
    }
    look_around();
    const ScreenSize now = size();
    const std::vector<std::string> block =
        block_space() ? block_for(now) : std::vector<std::string>();
    switch (writer_.write_line(text, block_.erase_text(now), as_text(block))) {
        case LineWriter::Fate::LeftOut:
            break;
        case LineWriter::Fate::Kept:
            block_.forget();
            break;
        case LineWriter::Fate::Whole:
            block_.forget();
            block_.drawn(block, now);
            break;
    }
}

void Screen::show_block(std::vector<std::string> lines) {
    lines_ = std::move(lines);
    look_around();
    if (!block_space()) {
        return;
    }
    const ScreenSize now = size();
    const std::vector<std::string> block = block_for(now);
    if (writer_.write_if_free(block_.erase_text(now) + as_text(block))) {
        block_.erased(now);
        block_.drawn(block, now);
    }
}

void Screen::clear_block() {
    lines_.clear();
    look_around();
    const ScreenSize now = size();
    if (!block_.empty() && writer_.write_if_free(block_.erase_text(now))) {
        block_.erased(now);
        block_.forget();
    }
}

}  // namespace dflash::report
