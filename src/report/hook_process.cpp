// SPDX-License-Identifier: Apache-2.0
#include "hook_process.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace dflash::report {
namespace {

void check(int result, const char* what) {
    if (result != 0) {
        throw std::system_error(result, std::generic_category(), what);
    }
}

struct SpawnActions : NonCopyable {
    SpawnActions() { check(::posix_spawn_file_actions_init(&actions), "posix_spawn"); }

    ~SpawnActions() { ::posix_spawn_file_actions_destroy(&actions); }

    posix_spawn_file_actions_t actions{};
};

struct SpawnAttributes : NonCopyable {
    SpawnAttributes() {
        check(::posix_spawnattr_init(&attributes), "posix_spawn");
        sigset_t none;
        sigemptyset(&none);
        sigset_t reset;
        sigfillset(&reset);
        sigdelset(&reset, SIGHUP);  // what nohup ignores stays ignored
        ::posix_spawnattr_setsigmask(&attributes, &none);
        ::posix_spawnattr_setsigdefault(&attributes, &reset);
        ::posix_spawnattr_setpgroup(&attributes, 0);
        check(::posix_spawnattr_setflags(
                  &attributes,
                  POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK),
              "posix_spawn");
    }

    ~SpawnAttributes() { ::posix_spawnattr_destroy(&attributes); }

    posix_spawnattr_t attributes{};
};

struct Descriptor : NonCopyable {
    explicit Descriptor(int n) : number(n) {}

    ~Descriptor() {
        if (number >= 0) {
            ::close(number);
        }
    }

    int number;
};

}  // namespace

HookProcess::HookProcess(const std::string& command, Input input, const std::string& output) {
    // posix_spawn, not fork: the process may hold many gigabytes, and threads with locks.
    std::array<int, 2> ends = {-1, -1};
    if (input == Input::Pipe) {
        check(::pipe2(ends.data(), O_CLOEXEC) == 0 ? 0 : errno, "pipe");
    } else {
        ends[0] = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
        check(ends[0] >= 0 ? 0 : errno, "/dev/null");
    }
    const Descriptor theirs(ends[0]);
    Descriptor ours(ends[1]);
    const Descriptor log(::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    check(log.number >= 0 ? 0 : errno, output.c_str());
    if (ours.number >= 0) {
        check(::fcntl(ours.number, F_SETFL, O_NONBLOCK) == 0 ? 0 : errno, "fcntl");
    }

    SpawnActions files;
    check(::posix_spawn_file_actions_adddup2(&files.actions, theirs.number, STDIN_FILENO), "dup2");
    check(::posix_spawn_file_actions_adddup2(&files.actions, log.number, STDOUT_FILENO), "dup2");
    check(::posix_spawn_file_actions_adddup2(&files.actions, log.number, STDERR_FILENO), "dup2");
    // Libraries of ours may have opened files without O_CLOEXEC.
    check(::posix_spawn_file_actions_addclosefrom_np(&files.actions, STDERR_FILENO + 1),
          "closefrom");
    const SpawnAttributes attributes;
    std::string shell = "sh";
    std::string option = "-c";
    std::string text = command;
    const std::array<char*, 4> arguments = {shell.data(), option.data(), text.data(), nullptr};
    check(
        ::posix_spawn(
            &pid_, "/bin/sh", &files.actions, &attributes.attributes, arguments.data(), ::environ),
        "/bin/sh");
    input_ = std::exchange(ours.number, -1);
}

HookProcess::~HookProcess() {
    close_input();
}

void HookProcess::close_input() noexcept {
    if (input_ >= 0) {
        ::close(std::exchange(input_, -1));
    }
}

std::optional<int> HookProcess::ended() noexcept {
    if (!code_) {
        int status = 0;
        pid_t result = 0;
        do {
            result = ::waitpid(pid_, &status, WNOHANG);
        } while (result < 0 && errno == EINTR);
        if (result == pid_) {
            code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        } else if (result < 0) {
            code_ = 0;  // somebody else has waited for it; nothing is known
        }
    }
    return code_;
}

std::optional<int> HookProcess::wait(double seconds) noexcept {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::duration<double>(seconds);
    while (!ended() && Clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return ended();
}

void HookProcess::send(int signal) const noexcept {
    if (!code_) {
        ::kill(-pid_, signal);
    }
}

std::string describe_exit(int code) {
    return code > 128 ? fmt::format("signal {}", code - 128) : fmt::format("exit code {}", code);
}

std::string last_line_of(const std::string& path) {
    constexpr ::off_t kTail = 2000;
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.number < 0) {
        return {};
    }
    const ::off_t size = ::lseek(file.number, 0, SEEK_END);
    std::string text(static_cast<std::size_t>(std::clamp<::off_t>(size, 0, kTail)), ' ');
    const ::ssize_t count =
        ::pread(file.number, text.data(), text.size(), std::max<::off_t>(size - kTail, 0));
    text.resize(static_cast<std::size_t>(std::max<::ssize_t>(count, 0)));
    const std::size_t end = text.find_last_not_of(" \n\r\t");
    if (end == std::string::npos) {
        return {};
    }
    text.resize(end + 1);
    const std::size_t newline = text.rfind('\n');
    return newline == std::string::npos ? text : text.substr(newline + 1);
}

}  // namespace dflash::report
