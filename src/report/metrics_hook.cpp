// SPDX-License-Identifier: Apache-2.0
#include "hook_process.hpp"

#include <dflash/core/activity.hpp>
#include <dflash/core/log.hpp>
#include <dflash/report/metrics_hook.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <deque>
#include <mutex>
#include <optional>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

namespace dflash::report {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

Clock::time_point in_seconds(double seconds) {
    return Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// How often a command is looked after that gives no sign of its end.
constexpr double kLookEvery = 0.2;

/// What the command gets after SIGTERM.
constexpr double kTermTime = 1;

}  // namespace

class MetricsHook::Feeder : NonCopyable {
  public:
    Feeder(std::string command, std::string output, MetricsHookOptions options)
        : command_(std::move(command)),
          output_(std::move(output)),
          options_(options),
          wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
          told_at_(Clock::now()),
          start_at_(Clock::now()),
          thread_([this] { run(); }) {}

    ~Feeder() {
        finish(1);
        ::close(wake_);
    }

    void write(std::string line) {
        {
            const std::lock_guard lock(mutex_);
            if (finish_by_ || given_up_ ||
                queued_bytes_ + line.size() > options_.max_queued_bytes) {
                ++counts_.dropped;
                return;
            }
            line += '\n';
            queued_bytes_ += line.size();
            queue_.push_back(std::move(line));
        }
        wake();
    }

    void finish(double seconds) {
        if (!thread_.joinable()) {
            return;
        }
        {
            const std::lock_guard lock(mutex_);
            finish_by_ = in_seconds(seconds);
        }
        wake();
        thread_.join();
        if (const Counts all = counts(); all.dropped > 0) {
            log_warning("hooks.metrics got {} lines; {} were dropped", all.written, all.dropped);
        }
    }

    Counts counts() const {
        const std::lock_guard lock(mutex_);
        return counts_;
    }

  private:
    void wake() const noexcept {
        const std::uint64_t one = 1;
        static_cast<void>(::write(wake_, &one, sizeof one) < 0);  // full: it is awake
    }

    void run() {
        ::pthread_setname_np(::pthread_self(), "dflash-hook");
        do {
            start_if_due();
            feed();
            look_after();
            tell_dropped();
            sleep();
            if (finish_by()) {
                note_progress();  // that wait has a limit of its own
            }
        } while (!over());
        end_process();
        // What nobody takes any more.
        const std::lock_guard lock(mutex_);
        counts_.dropped += static_cast<std::int64_t>(queue_.size()) + (current_.empty() ? 0 : 1);
        queue_.clear();
    }

    std::optional<Clock::time_point> finish_by() const {
        const std::lock_guard lock(mutex_);
        return finish_by_;
    }

    /// Whether nothing is left to be written, or no time for it.
    bool over() const {
        const std::lock_guard lock(mutex_);
        if (!finish_by_) {
            return false;
        }
        const bool all_written = queue_.empty() && current_.empty();
        return all_written || !process_ || process_->input() < 0 || Clock::now() >= *finish_by_;
    }

    void start_if_due() {
        if (process_ || given_up_ || Clock::now() < start_at_) {
            return;
        }
        try {
            process_.emplace(command_, HookProcess::Input::Pipe, output_);
            started_at_ = Clock::now();
        } catch (const std::system_error& error) {
            failed(error.what());
        }
    }

    /// Writes as much as the pipe takes.
    void feed() {
        while (process_ && process_->input() >= 0 && next_line()) {
            const ::ssize_t count =
                ::write(process_->input(), current_.data() + at_, current_.size() - at_);
            if (count >= 0) {
                at_ += static_cast<std::size_t>(count);
                if (at_ == current_.size()) {
                    current_.clear();
                    const std::lock_guard lock(mutex_);
                    ++counts_.written;
                }
            } else if (errno == EAGAIN) {
                return;
            } else if (errno != EINTR) {
                // It reads no more; what it says with its exit code decides what follows. The line
                // is for its successor, from the beginning.
                process_->close_input();
                at_ = 0;
            }
        }
    }

    bool next_line() {
        if (current_.empty()) {
            const std::lock_guard lock(mutex_);
            if (queue_.empty()) {
                return false;
            }
            current_ = std::move(queue_.front());
            queue_.pop_front();
            queued_bytes_ -= current_.size();
            at_ = 0;
        }
        return true;
    }

    void look_after() {
        const std::optional<int> code = process_ ? process_->ended() : std::nullopt;
        if (!code) {
            return;
        }
        process_.reset();
        at_ = 0;
        const std::string how = describe_exit(*code);
        if (*code == 0 || *code == 126 || *code == 127) {
            give_up(how);
        } else {
            failed(how);
        }
    }

    void failed(const std::string& how) {
        failures_ = seconds_since(started_at_) >= options_.healthy_s ? 1 : failures_ + 1;
        if (failures_ >= options_.most_failures) {
            give_up(fmt::format("{}, {} times in a row", how, failures_));
            return;
        }
        const double delay_s =
            std::min(options_.first_delay_s * static_cast<double>(1 << std::min(failures_ - 1, 20)),
                     options_.longest_delay_s);
        start_at_ = in_seconds(delay_s);
        log_warning(
            "hooks.metrics ended ({}) and is started again in {:.3g} s; its output is in "
            "{}: {}",
            how,
            delay_s,
            output_,
            last_line_of(output_));
    }

    void give_up(const std::string& how) {
        {
            const std::lock_guard lock(mutex_);
            given_up_ = true;
            counts_.dropped +=
                static_cast<std::int64_t>(queue_.size()) + (current_.empty() ? 0 : 1);
            queue_.clear();
            queued_bytes_ = 0;
        }
        current_.clear();
        log_warning("hooks.metrics ended ({}) and gets no more lines; its output is in {}: {}",
                    how,
                    output_,
                    last_line_of(output_));
    }

    void tell_dropped() {
        const std::int64_t dropped = counts().dropped;
        if (dropped > told_dropped_ && seconds_since(told_at_) >= options_.tell_every_s) {
            log_warning(
                "hooks.metrics: {} lines dropped, {} in all", dropped - told_dropped_, dropped);
            told_dropped_ = dropped;
            told_at_ = Clock::now();
        }
    }

    void sleep() {
        double seconds = kLookEvery;
        if (!process_) {
            const double until_start =
                std::chrono::duration<double>(start_at_ - Clock::now()).count();
            seconds = given_up_ ? options_.tell_every_s : std::max(until_start, 0.0);
        }
        std::array<::pollfd, 2> polled = {};
        polled[0] = {.fd = wake_, .events = POLLIN, .revents = 0};
        // Of a pipe without a reader poll() tells at once, so that is asked for only with
        // something to write.
        const bool writing = process_ && process_->input() >= 0 && !current_.empty();
        polled[1] = {.fd = writing ? process_->input() : -1, .events = POLLOUT, .revents = 0};
        ::poll(polled.data(), polled.size(), static_cast<int>(seconds * 1000) + 1);
        std::uint64_t ignored = 0;
        static_cast<void>(::read(wake_, &ignored, sizeof ignored) < 0);
    }

    void end_process() {
        if (!process_) {
            return;
        }
        process_->close_input();
        std::optional<int> code;
        do {
            code = process_->wait(kLookEvery);
            note_progress();
        } while (!code && Clock::now() < *finish_by());
        if (!code) {
            log_warning("hooks.metrics does not end after its input did; it gets SIGTERM");
            process_->send(SIGTERM);
            code = process_->wait(kTermTime);
            if (!code) {
                log_warning("hooks.metrics still runs as process {}; it is left alone",
                            process_->pid());
            }
        } else if (*code != 0) {
            log_warning("hooks.metrics ended with {}; its output is in {}: {}",
                        describe_exit(*code),
                        output_,
                        last_line_of(output_));
        }
        process_.reset();
    }

    const std::string command_;
    const std::string output_;
    const MetricsHookOptions options_;
    const int wake_;  // eventfd: something was queued

    mutable std::mutex mutex_;  // guards: queue_ to counts_
    std::deque<std::string> queue_;
    std::size_t queued_bytes_ = 0;
    std::optional<Clock::time_point> finish_by_;
    bool given_up_ = false;  // written by thread_ only
    Counts counts_;

    // Of thread_.
    std::optional<HookProcess> process_;
    std::string current_;  // the line that is being written
    std::size_t at_ = 0;   // how much of it is
    int failures_ = 0;     // in a row
    std::int64_t told_dropped_ = 0;
    Clock::time_point told_at_;
    Clock::time_point start_at_;
    Clock::time_point started_at_;
    std::thread thread_;
};

MetricsHook::MetricsHook(std::string command, std::string output, MetricsHookOptions options)
    : feeder_(std::make_unique<Feeder>(std::move(command), std::move(output), options)) {}

MetricsHook::~MetricsHook() = default;

void MetricsHook::write(std::string line) {
    feeder_->write(std::move(line));
}

void MetricsHook::finish(double seconds) {
    feeder_->finish(seconds);
}

MetricsHook::Counts MetricsHook::counts() const {
    return feeder_->counts();
}

}  // namespace dflash::report
