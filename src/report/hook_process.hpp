// SPDX-License-Identifier: Apache-2.0
// A user's command as a child of this process.
#pragma once

#include <dflash/core/scope.hpp>

#include <optional>
#include <string>
#include <sys/types.h>

namespace dflash::report {

/// /bin/sh -c COMMAND in a process group of its own, so that Ctrl-C and a closed terminal, which go
/// to whole groups, do not reach it. It gets no descriptor but the standard ones, and signals as
/// they are at the start of a program. Owned by one thread.
class HookProcess : NonCopyable {
  public:
    enum class Input { Pipe, Nothing };

    /// Starts the command; standard output and error are appended to the file at `output`. Throws
    /// std::system_error.
    HookProcess(const std::string& command, Input input, const std::string& output);

    /// Closes the input. A process that still runs is left alone.
    ~HookProcess();

    /// Our end of its standard input, which does not block; -1 once closed.
    int input() const { return input_; }

    void close_input() noexcept;

    /// Whether it has ended: its exit code, or 128 and the signal that ended it.
    std::optional<int> ended() noexcept;

    /// Waits for the end, at most so long.
    std::optional<int> wait(double seconds) noexcept;

    /// Sends a signal to the whole group.
    void send(int signal) const noexcept;

    pid_t pid() const { return pid_; }

  private:
    pid_t pid_ = -1;
    int input_ = -1;
    std::optional<int> code_;
};

/// "exit code 3", "signal 9".
std::string describe_exit(int code);

/// The last line that is not blank of a file that grows; empty if there is none.
std::string last_line_of(const std::string& path);

}  // namespace dflash::report
