// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/settings.hpp>
#include <dflash/report/console.hpp>
#include <dflash/report/failure_report.hpp>
#include <dflash/train/watchdog.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <fmt/format.h>
#include <memory>
#include <pthread.h>
#include <unistd.h>
#include <utility>

namespace dflash::train {
namespace {

using Clock = std::chrono::steady_clock;

/// What the console gets to take the last lines.
constexpr auto kPrintTime = std::chrono::seconds(4);

/// To standard error, if that takes it at once: where the console itself hangs.
void write_without_console(const std::string& text) noexcept {
    const int descriptor = ::open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (descriptor >= 0) {
        static_cast<void>(::write(descriptor, text.data(), text.size()) < 0);
        ::close(descriptor);
    }
}

std::string joined(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) {
        text += line + "\n";
    }
    return text;
}

/// Whom to blame; where everybody waits, at least where the loop is.
std::string culprit(const std::vector<std::string>& suspects, const Activity& loop) {
    if (suspects.empty()) {
        return fmt::format("loop: {}, and nobody works on it", loop.now().text());
    }
    return suspects.size() == 1
               ? suspects.front()
               : fmt::format("{}; and {} more", suspects.front(), suspects.size() - 1);
}

}  // namespace

double StallClock::tick(std::uint64_t progress, double elapsed_s) {
    // A tick that comes late says that this thread did not run, and perhaps nothing did.
    if (progress != progress_) {
        progress_ = progress;
        stalled_s_ = 0;
    } else {
        stalled_s_ += std::min(elapsed_s, 2 * tick_s_);
    }
    return stalled_s_;
}

void end_process_now(const std::exception_ptr& error,
                     const std::vector<std::string>& lines) noexcept {
    int code = exit_code(ErrorKind::Internal);
    try {
        const report::Failure failure = report::describe_failure(error);
        code = exit_code(failure.kind);

        struct Printing {
            std::exception_ptr error;
            std::vector<std::string> lines;
            std::atomic<bool> done = false;
        };

        // On a thread of its own: what hangs may hold the console's lock, or be the disk of its
        // file.
        const auto printing = std::make_shared<Printing>();
        printing->error = error;
        printing->lines = lines;
        std::thread([printing] {
            for (const std::string& line : printing->lines) {
                report::console().print(line);
            }
            report::report_failure(printing->error, report::console());
            printing->done = true;
        }).detach();
        const Clock::time_point until = Clock::now() + kPrintTime;
        while (!printing->done && Clock::now() < until) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        if (!printing->done) {
            write_without_console(joined(lines) + joined(report::failure_lines(failure, "")));
        }
    } catch (...) {
        write_without_console("dflash: the run hangs, and its report cannot be made\n");
    }
    ::_exit(code);
}

Watchdog::Watchdog(const Whereabouts& whereabouts, WatchdogOptions options)
    : whereabouts_(whereabouts),
      options_(std::move(options)),
      tick_s_(std::clamp(options_.after_s / 20, 0.02, 1.0)) {
    if (!options_.end_process) {
        options_.end_process = end_process_now;
    }
    thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
}

void Watchdog::run_failed(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) {
        error_ = std::move(error);
    }
}

void Watchdog::watch() {
    ::pthread_setname_np(::pthread_self(), "dflash-watchdog");
    StallClock clock(tick_s_);
    bool failed = false;
    Clock::time_point last = Clock::now();
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(
        lock, std::chrono::duration<double>(tick_s_), [this] { return stopping_; })) {
        // What was finished before the error says nothing about the way to the end.
        if (error_ && !std::exchange(failed, true)) {
            clock.restart();
        }
        const Clock::time_point now = Clock::now();
        const double stalled_s =
            clock.tick(options_.progress(),
                       std::chrono::duration<double>(now - std::exchange(last, now)).count());
        if (stalled_s < (failed ? options_.after_error_s : options_.after_s)) {
            continue;
        }
        // Only tests return from what ends the process.
        const std::exception_ptr error = error_;
        lock.unlock();
        if (failed) {
            end_failed(error);
        } else {
            end_stalled(stalled_s);
        }
        lock.lock();
        clock.restart();
    }
}

void Watchdog::end_stalled(double stalled_s) {
    // What began just before the last progress counts, too.
    const Picture picture = whereabouts_.picture(stalled_s / 2);
    std::vector<std::string> lines = {fmt::format("error: no progress for {}; who waits for whom:",
                                                  to_string(Duration{options_.after_s}))};
    for (const std::string& line : picture.lines) {
        lines.push_back("  " + line);
    }
    options_.end_process(
        std::make_exception_ptr(Error(
            ErrorKind::Internal,
            {.what = fmt::format("the run hangs: nothing was finished for {}",
                                 to_string(Duration{options_.after_s})),
             .where = culprit(picture.suspects, whereabouts_.loop()),
             .cause = whereabouts_.loop().now().idle()
                          ? std::string()
                          : fmt::format("the loop is in: {}", whereabouts_.loop().now().text()),
             .hint = "Continue from the last save with --resume; raise watchdog.after if "
                     "something is only slow, else report this with the lines above"})),
        lines);
}

void Watchdog::end_failed(const std::exception_ptr& error) {
    const Picture picture = whereabouts_.picture(0);
    std::vector<std::string> lines = {
        fmt::format("error: the run has failed, and does not end by itself within {}: {}",
                    to_string(Duration{options_.after_error_s}),
                    culprit(picture.suspects, whereabouts_.loop()))};
    for (const std::string& line : picture.lines) {
        lines.push_back("  " + line);
    }
    options_.end_process(error, lines);
}

}  // namespace dflash::train
