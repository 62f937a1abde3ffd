// SPDX-License-Identifier: Apache-2.0
// Test cases that run in a process of their own: this program again, with one test case that is
// otherwise skipped. They are called "child: ..." and get their input from the environment.
#pragma once

#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace dflash::kernels {

using Environment = std::vector<std::pair<std::string, std::string>>;

class ChildProcess {
  public:
    /// `quiet`: what it prints goes nowhere, for children that are meant to fail.
    ChildProcess(const std::string& test_case, const Environment& environment, bool quiet = false);
    ~ChildProcess();  ///< kills it if it still runs
    ChildProcess(ChildProcess&& other) noexcept;
    ChildProcess& operator=(ChildProcess&&) = delete;

    void kill_now() const;

    /// The exit code (0: the test case passed), or 1000 + signal; -1 after `seconds`.
    int wait(double seconds = 120);

  private:
    pid_t pid_;
};

/// A variable that the parent has set; fails the test without it.
std::string child_input(const char* name);

}  // namespace dflash::kernels
