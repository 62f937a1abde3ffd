// SPDX-License-Identifier: Apache-2.0
#include "screen.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/output_file.hpp>
#include <dflash/report/console.hpp>

#include <chrono>
#include <ctime>
#include <deque>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <mutex>
#include <optional>
#include <utility>

namespace dflash::report {
namespace {

constexpr std::size_t kLinesBeforeAttach = 4096;

/// "2026-01-31T12:00:00Z "
std::string time_stamp() {
    return fmt::format("{:%Y-%m-%dT%H:%M:%SZ} ", fmt::gmtime(std::time(nullptr)));
}

std::string_view prefix_of(LogLevel level) {
    switch (level) {
        case LogLevel::Debug:
            return "debug: ";
        case LogLevel::Info:
            return "";
        case LogLevel::Warning:
            return "warning: ";
        case LogLevel::Error:
            return "error: ";
    }
    return "";
}

}  // namespace

struct Console::State {
    explicit State(int descriptor) : screen(descriptor, terminal_kind()) {}

    /// Stores one line, already stamped, in the file or for it. Requires the lock.
    void store(std::string line) {
        line += '\n';
        if (!file) {
            if (early_lines.size() == kLinesBeforeAttach) {
                early_lines.pop_front();
                ++lost;
            }
            early_lines.push_back(std::move(line));
            return;
        }
        if (lost > 0) {
            line.insert(0, fmt::format("{}({} lines lost here)\n", time_stamp(), lost));
        }
        try {
            // In append mode a line that failed half-way stays torn; the next begins a new one.
            file->write(torn ? "\n" + line : line);
            lost = 0;
            torn = false;
        } catch (const Error& error) {
            if (lost == 0) {
                screen.write_line(
                    LogLevel::Warning,
                    fmt::format("warning: {}: {}; lines are lost there until it works again",
                                error.parts().what,
                                error.parts().cause));
            }
            ++lost;
            torn = true;
        }
    }

    void note_if_gone() {
        if (screen.is_gone() && !std::exchange(noted_gone, true)) {
            store(time_stamp() +
                  "warning: standard output is gone; lines go on in console.log only");
        }
    }

    mutable std::mutex mutex;  // guards all below
    Screen screen;
    ConsoleWarnings warnings;
    bool blocks_ended = false;
    bool noted_gone = false;
    std::optional<io::OutputFile> file;
    std::deque<std::string> early_lines;  // before there is a file
    std::size_t lost = 0;                 // lines the file lacks since the last one in it
    bool torn = false;
    bool installed = false;
    LogSink former_sink;

    std::mutex listener_mutex;  // guards the listener, and is held while it runs
    std::function<void(const std::exception_ptr&)> failure_listener;
};

Console::Console(int descriptor) : state_(std::make_unique<State>(descriptor)) {}

Console::~Console() {
    if (state_->installed) {
        set_log_sink(std::move(state_->former_sink));
    }
    clear_block();
    flush();
}

void Console::install() {
    LogSink former =
        set_log_sink([this](LogLevel level, std::string_view line) { write_line(level, line); });
    const std::lock_guard lock(state_->mutex);
    if (!std::exchange(state_->installed, true)) {
        state_->former_sink = std::move(former);
    }
}

void Console::attach(const std::string& path) {
    const std::lock_guard lock(state_->mutex);
    // If the file cannot be opened, the early lines wait for another.
    state_->file.emplace(path, io::OutputFile::Mode::Append);
    std::deque<std::string> lines = std::exchange(state_->early_lines, {});
    for (std::string& line : lines) {
        line.pop_back();
        state_->store(std::move(line));
    }
}

void Console::write_line(LogLevel level, std::string_view text) {
    // Each line of a text has its own stamp and prefix, so that every line of the file has them.
    const std::string stamp = time_stamp();
    const std::string_view prefix = prefix_of(level);
    const std::lock_guard lock(state_->mutex);
    if (level == LogLevel::Warning) {
        ++state_->warnings.count;
        state_->warnings.last = text;
    }
    for (;;) {
        const std::size_t end = text.find('\n');
        const std::string line = fmt::format("{}{}", prefix, escape_controls(text.substr(0, end)));
        if (level != LogLevel::Debug) {
            state_->screen.write_line(level, line);
        }
        state_->store(stamp + line);
        if (end == std::string_view::npos) {
            break;
        }
        text.remove_prefix(end + 1);
    }
    state_->note_if_gone();
}

void Console::print(std::string_view text) {
    write_line(LogLevel::Info, text);
}

void Console::flush() {
    const std::lock_guard lock(state_->mutex);
    state_->screen.flush(std::chrono::seconds(2));
    state_->note_if_gone();
}

ConsoleWarnings Console::warnings() const {
    const std::lock_guard lock(state_->mutex);
    return state_->warnings;
}

std::string Console::log_path() const {
    const std::lock_guard lock(state_->mutex);
    return state_->file ? state_->file->path() : std::string();
}

std::optional<BlockSpace> Console::block_space() const {
    const std::lock_guard lock(state_->mutex);
    return state_->screen.block_space();
}

void Console::show_block(std::vector<std::string> lines) {
    const std::lock_guard lock(state_->mutex);
    if (!state_->blocks_ended) {
        state_->screen.show_block(std::move(lines));
        state_->note_if_gone();
    }
}

void Console::clear_block() {
    const std::lock_guard lock(state_->mutex);
    state_->screen.clear_block();
}

void Console::end_blocks() {
    const std::lock_guard lock(state_->mutex);
    state_->blocks_ended = true;
    state_->screen.clear_block();
}

void Console::set_failure_listener(std::function<void(const std::exception_ptr&)> listener) {
    const std::lock_guard lock(state_->listener_mutex);
    state_->failure_listener = std::move(listener);
}

void Console::tell_failure(const std::exception_ptr& error) {
    const std::lock_guard lock(state_->listener_mutex);
    if (state_->failure_listener) {
        state_->failure_listener(error);
    }
}

bool Console::is_gone() const {
    const std::lock_guard lock(state_->mutex);
    return state_->screen.is_gone();
}

bool Console::is_terminal() const {
    return state_->screen.is_terminal();
}

int Console::width() const {
    return state_->screen.size().columns;
}

Console& console() {
    static Console* const instance = [] {
        auto* created = new Console();
        created->install();
        return created;
    }();
    return *instance;
}

}  // namespace dflash::report
