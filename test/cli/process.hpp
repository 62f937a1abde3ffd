// SPDX-License-Identifier: Apache-2.0
// The program as a process of its own, in a pipe or in a pseudo-terminal.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

namespace dflash::cli {

class Process {
  public:
    /// Starts the program with these arguments; with a pseudo-terminal of 80x24 or with its output
    /// in a pipe. `environment`: more variables, "NAME=VALUE".
    Process(std::vector<std::string> arguments,
            bool in_terminal,
            std::vector<std::string> environment = {});

    /// The same with a program of one's own as the first word.
    static Process of(std::vector<std::string> command, bool in_terminal);

    ~Process();  ///< kills it if it still runs
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    void send(int signal) const;

    /// Types a key into the terminal (3 is Ctrl-C).
    void type(char key) const;

    /// Hangs up: closes our end of the terminal or pipe.
    void close_terminal();

    /// Reads output until `text` has appeared; false if the process ends or `seconds` pass first.
    bool wait_for(const std::string& text, double seconds);

    /// Waits for the end: the exit code, or 1000 + signal; -1 after `seconds`.
    int wait(double seconds);

    pid_t pid() const { return pid_; }

    const std::string& output() const { return output_; }

  private:
    struct WholeCommand {
        std::vector<std::string> words;
    };

    Process(WholeCommand command, bool in_terminal, std::vector<std::string> environment);

    bool read_some(int timeout_ms);

    pid_t pid_ = -1;
    int descriptor_ = -1;
    std::string output_;
};

/// One word for a shell.
std::string shell_quoted(const std::string& word);

/// The program with these arguments as a line for a shell.
std::string shell_line(const std::vector<std::string>& arguments);

/// A fresh folder name for a run under the temporary folder.
std::string fresh_folder(const std::string& name);

/// Arguments of a run on the tiny target.
std::vector<std::string> tiny_arguments(const std::string& output,
                                        int steps,
                                        const std::vector<std::string>& more = {});

}  // namespace dflash::cli
