// SPDX-License-Identifier: Apache-2.0
// Ends a run that does nothing any more, and says who waits for whom. A thread that hangs cannot be
// joined, so the process ends under it: without a core file, with the report of every failed run.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/train/whereabouts.hpp>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace dflash::train {

/// Time without progress, as a thread counts it that wakes at a steady pace: what passes while the
/// whole process stands (Ctrl-Z, a suspended machine, a debugger) is one tick, not minutes.
class StallClock {
  public:
    explicit StallClock(double tick_s) : tick_s_(tick_s) {}

    /// To be called at every tick, with the time since the last one; returns stalled_s().
    double tick(std::uint64_t progress, double elapsed_s);

    double stalled_s() const { return stalled_s_; }

    void restart() { stalled_s_ = 0; }

  private:
    double tick_s_;
    std::uint64_t progress_ = 0;
    double stalled_s_ = 0;
};

struct WatchdogOptions {
    double after_s = 300;
    /// After an error the run has this time without progress to come to its end by itself.
    double after_error_s = 6;
    std::function<std::uint64_t()> progress = progress_noted;
    /// Ends the process with the report of `error`, after the lines; must not return.
    std::function<void(const std::exception_ptr& error, const std::vector<std::string>& lines)>
        end_process = {};  ///< empty: end_process_now
};

/// Prints lines and report as far as the console takes them within seconds, and ends the process
/// with the exit code of the error: no destructor runs, and no core file is written.
[[noreturn]] void end_process_now(const std::exception_ptr& error,
                                  const std::vector<std::string>& lines) noexcept;

/// Watches from its making to its end, start-up included.
class Watchdog : NonCopyable {
  public:
    Watchdog(const Whereabouts& whereabouts, WatchdogOptions options);
    ~Watchdog();

    /// The run has failed and is about to end by itself: if it does not, it ends with this error.
    /// From any thread; the first error counts.
    void run_failed(std::exception_ptr error);

  private:
    void watch();
    void end_stalled(double stalled_s);
    void end_failed(const std::exception_ptr& error);

    const Whereabouts& whereabouts_;
    WatchdogOptions options_;
    double tick_s_;
    std::mutex mutex_;  // guards: stopping_, error_
    std::condition_variable wake_;
    bool stopping_ = false;
    std::exception_ptr error_;
    std::thread thread_;
};

}  // namespace dflash::train
