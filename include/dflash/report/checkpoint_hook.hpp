// SPDX-License-Identifier: Apache-2.0
// A command of the user's after every save.
#pragma once

#include <dflash/core/scope.hpp>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace dflash::report {

/// Runs a shell command for each saved checkpoint, one at a time, in the background; {dir} in it
/// becomes the folder, quoted for the shell. Nothing that it does fails or stalls the run: an exit
/// code other than 0, and a folder that retention has removed before its turn came, are warnings.
class CheckpointHook : NonCopyable {
  public:
    /// Output of the commands is appended to the file at `output`.
    CheckpointHook(std::string command, std::string output);

    /// finish() without waiting.
    ~CheckpointHook();

    /// Queues the command for a checkpoint. Never waits, from any thread.
    void saved(std::int64_t step, const std::string& folder);

    /// Waits until all commands have run, at most so long; says so if there is something to wait
    /// for. A command that still runs then is left alone, and those whose turn did not come are
    /// told, to be run by hand. No command is started from then on.
    void finish(double seconds);

    /// The command for a folder.
    static std::string command_for(const std::string& command, const std::string& folder);

  private:
    struct Job {
        std::int64_t step = 0;
        std::string folder;
    };

    void work();
    void run_command(const Job& job);
    bool stopping();

    const std::string command_;
    const std::string output_;
    std::mutex mutex_;  // guards: queue_, running_, stopping_
    std::condition_variable changed_;
    std::deque<Job> queue_;
    bool running_ = false;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace dflash::report
