// SPDX-License-Identifier: Apache-2.0
// The numbers of a run, line by line, for a command of the user's.
#pragma once

#include <dflash/core/scope.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace dflash::report {

struct MetricsHookOptions {
    std::size_t max_queued_bytes = 4 << 20;
    /// A command that fails is started again after this time, doubled with every failure in a row
    /// up to the longest; one that lived longer than `healthy_s` did not fail in a row.
    double first_delay_s = 1;
    double longest_delay_s = 300;
    double healthy_s = 60;
    int most_failures = 6;     ///< in a row; then it is given up
    double tell_every_s = 60;  ///< lines dropped meanwhile are told
};

/// Runs a shell command and writes lines to its standard input, through a bounded queue and a
/// thread of its own. Nothing that the command does fails or stalls the run: it is a warning. A
/// command that fails is started again (with the lines of that time, as far as they fit); one that
/// ends with exit code 0 wants no more, and 126 and 127 (no such command) will not get better, so
/// all three get no further lines.
class MetricsHook : NonCopyable {
  public:
    /// Output of the command is appended to the file at `output`. Does not throw for the command's
    /// sake.
    MetricsHook(std::string command, std::string output, MetricsHookOptions options = {});

    /// finish() within a second.
    ~MetricsHook();

    /// Queues a line (without a line end); dropped and counted if it does not fit. Never waits,
    /// from any thread.
    void write(std::string line);

    /// Writes what is queued, closes the command's input and waits for its end, at most so long;
    /// then it gets SIGTERM. Tells how many lines were dropped. write() drops everything from then
    /// on.
    void finish(double seconds);

    /// Lines handed to the command, and lines that it never got.
    struct Counts {
        std::int64_t written = 0;
        std::int64_t dropped = 0;
    };

    Counts counts() const;

  private:
    class Feeder;
    std::unique_ptr<Feeder> feeder_;
};

}  // namespace dflash::report
