// SPDX-License-Identifier: Apache-2.0
#include "process.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace dflash::cli {
namespace {

double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

Process::Process(std::vector<std::string> arguments,
                 bool in_terminal,
                 std::vector<std::string> environment)
    : Process(
          [&] {
              arguments.insert(arguments.begin(), DFLASH_PROGRAM);
              return WholeCommand{std::move(arguments)};
          }(),
          in_terminal,
          std::move(environment)) {}

Process Process::of(std::vector<std::string> command, bool in_terminal) {
    return Process(WholeCommand{std::move(command)}, in_terminal, {});
}

Process::Process(WholeCommand command, bool in_terminal, std::vector<std::string> environment) {
    std::vector<char*> pointers;
    for (std::string& word : command.words) {
        pointers.push_back(word.data());
    }
    pointers.push_back(nullptr);
    int pipe_ends[2] = {-1, -1};
    if (in_terminal) {
        winsize size = {};
        size.ws_row = 24;
        size.ws_col = 80;
        pid_ = ::forkpty(&descriptor_, nullptr, nullptr, &size);
    } else {
        REQUIRE(::pipe2(pipe_ends, O_CLOEXEC) == 0);
        pid_ = ::fork();
        descriptor_ = pipe_ends[0];
    }
    if (pid_ == 0) {
        if (!in_terminal) {
            ::dup2(pipe_ends[1], STDOUT_FILENO);
            ::dup2(pipe_ends[1], STDERR_FILENO);
        }
        for (std::string& variable : environment) {
            ::putenv(variable.data());
        }
        ::execvp(pointers[0], pointers.data());
        ::_exit(127);
    }
    if (!in_terminal) {
        ::close(pipe_ends[1]);
    }
    REQUIRE(pid_ > 0);
}

Process::~Process() {
    if (pid_ > 0) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    close_terminal();
}

void Process::send(int signal) const {
    ::kill(pid_, signal);
}

void Process::type(char key) const {
    REQUIRE(::write(descriptor_, &key, 1) == 1);
}

void Process::close_terminal() {
    if (descriptor_ >= 0) {
        ::close(descriptor_);
        descriptor_ = -1;
    }
}

bool Process::read_some(int timeout_ms) {
    if (descriptor_ < 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(timeout_ms));
        return true;
    }
    pollfd poll_one = {descriptor_, POLLIN, 0};
    if (::poll(&poll_one, 1, timeout_ms) <= 0) {
        return true;
    }
    char buffer[4096];
    const ssize_t count = ::read(descriptor_, buffer, sizeof buffer);
    if (count > 0) {
        output_.append(buffer, static_cast<std::size_t>(count));
    }
    return count > 0;  // a terminal answers EIO, a pipe 0, when the other end is gone
}

bool Process::wait_for(const std::string& text, double seconds) {
    const double until = now_s() + seconds;
    while (output_.find(text) == std::string::npos) {
        if (now_s() > until || !read_some(20)) {
            return output_.find(text) != std::string::npos;
        }
    }
    return true;
}

int Process::wait(double seconds) {
    const double until = now_s() + seconds;
    for (;;) {
        int status = 0;
        if (::waitpid(pid_, &status, WNOHANG) == pid_) {
            pid_ = -1;
            while (descriptor_ >= 0 && read_some(0) && !output_.empty()) {
                pollfd poll_one = {descriptor_, POLLIN, 0};
                if (::poll(&poll_one, 1, 0) <= 0) {
                    break;
                }
            }
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
        }
        if (now_s() > until) {
            return -1;
        }
        if (!read_some(10)) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    }
}

std::string shell_quoted(const std::string& word) {
    std::string quoted = "'";
    for (const char c : word) {
        quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    return quoted + "'";
}

std::string shell_line(const std::vector<std::string>& arguments) {
    std::string line = shell_quoted(DFLASH_PROGRAM);
    for (const std::string& argument : arguments) {
        line += " " + shell_quoted(argument);
    }
    return line;
}

std::string fresh_folder(const std::string& name) {
    const auto folder = std::filesystem::temp_directory_path() /
                        ("dflash-" + name + "-" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder);
    return folder.string();
}

std::vector<std::string> tiny_arguments(const std::string& output,
                                        int steps,
                                        const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--config",
                                          "configs/tiny-cpu.toml",
                                          "--gpus",
                                          "cpu:2",
                                          "--output",
                                          output,
                                          "--set",
                                          "train.max_steps=" + std::to_string(steps),
                                          "--set",
                                          "report.line_every=1ms"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
}

}  // namespace dflash::cli
