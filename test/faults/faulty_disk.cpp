// SPDX-License-Identifier: Apache-2.0
// A disk that fails: stands in for the C library's calls on files, in a test program that links it
// or in any program that preloads it (LD_PRELOAD), and makes some of them fail as the rules in the
// file $DFLASH_TEST_DISK say. Without that variable all calls pass.
//
// A rule is a line "CALL PART ACTION SKIP COUNT": the calls named CALL ("any" for all of them) on
// paths that contain PART, but for the first SKIP of them, COUNT times (-1: for ever). CALL is open
// (for writing), write, read, sync, rename, remove, mkdir, symlink or truncate. ACTION is
//   an errno name   the call fails and does nothing (ENOSPC, EIO, EINTR, EDQUOT, EROFS)
//   short           a write takes one byte of what it is given
//   flip            a read delivers its first byte with a bit flipped
//   slow:N          the call takes N ms longer
//   kill            the process ends by SIGKILL instead of the call
//   tear            a write takes half of what it is given, then the process ends by SIGKILL
// The file is read again when it changes, and counting begins anew; "$DFLASH_TEST_DISK.count"
// gets the number of calls that matched the first rule, so that a test can go through them all.
//
// The calls are made by number: names would lead back here.
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

namespace {

struct Rule {
    std::string call;
    std::string part;
    std::string action;
    std::int64_t skip = 0;
    std::int64_t count = 0;
    std::int64_t matched = 0;
};

struct Rules {
    std::mutex mutex;  // guards all below
    std::string text;
    std::vector<Rule> rules;
};

Rules& rules() {
    static auto* const all = new Rules;  // lives until the very end of the process
    return *all;
}

const char* rule_file() {
    return std::getenv("DFLASH_TEST_DISK");
}

std::string read_rules() {
    std::string text;
    const auto descriptor =
        static_cast<int>(::syscall(SYS_openat, AT_FDCWD, rule_file(), O_RDONLY | O_CLOEXEC));
    if (descriptor < 0) {
        return text;
    }
    std::array<char, 4096> piece;
    for (;;) {
        const auto got = ::syscall(SYS_read, descriptor, piece.data(), piece.size());
        if (got <= 0) {
            break;
        }
        text.append(piece.data(), static_cast<std::size_t>(got));
    }
    ::syscall(SYS_close, descriptor);
    return text;
}

void write_count(std::int64_t count) {
    const std::string path = std::string(rule_file()) + ".count";
    const std::string text = std::to_string(count) + "\n";
    const auto descriptor = static_cast<int>(::syscall(
        SYS_openat, AT_FDCWD, path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (descriptor >= 0) {
        ::syscall(SYS_write, descriptor, text.data(), text.size());
        ::syscall(SYS_close, descriptor);
    }
}

void parse(Rules& all, std::string text) {
    all.rules.clear();
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        Rule rule;
        if (std::istringstream(line) >> rule.call >> rule.part >> rule.action >> rule.skip >>
            rule.count) {
            all.rules.push_back(rule);
        }
    }
    all.text = std::move(text);
}

int error_of(std::string_view name) {
    constexpr std::array<std::pair<std::string_view, int>, 5> kErrors = {
        {{"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EINTR", EINTR}, {"EDQUOT", EDQUOT}, {"EROFS", EROFS}}};
    for (const auto& [text, number] : kErrors) {
        if (name == text) {
            return number;
        }
    }
    return 0;
}

/// The action for a call, or nothing; what only delays is done here.
std::string action_for(std::string_view call, const std::string& path) {
    if (rule_file() == nullptr || path.find(rule_file()) != std::string::npos) {
        return {};
    }
    std::string action;
    std::int64_t delay_ms = 0;
    {
        Rules& all = rules();
        const std::lock_guard lock(all.mutex);
        if (std::string text = read_rules(); text != all.text) {
            parse(all, std::move(text));
        }
        for (std::size_t i = 0; i < all.rules.size(); ++i) {
            Rule& rule = all.rules[i];
            if ((rule.call != "any" && rule.call != call) ||
                path.find(rule.part) == std::string::npos) {
                continue;
            }
            const std::int64_t n = rule.matched++;
            if (i == 0) {
                write_count(rule.matched);
            }
            if (n < rule.skip || (rule.count >= 0 && n >= rule.skip + rule.count)) {
                continue;
            }
            if (rule.action.starts_with("slow:")) {
                delay_ms += std::atol(rule.action.c_str() + 5);
            } else if (action.empty()) {
                action = rule.action;
            }
        }
    }
    if (delay_ms > 0) {
        ::timespec left{.tv_sec = delay_ms / 1000, .tv_nsec = delay_ms % 1000 * 1'000'000};
        while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
        }
    }
    if (action == "kill") {
        ::syscall(SYS_kill, ::getpid(), SIGKILL);
    }
    return action;
}

std::string path_of(int descriptor) {
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    std::array<char, 4096> target;
    const auto size =
        ::syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), target.data(), target.size());
    return size <= 0 ? std::string() : std::string(target.data(), static_cast<std::size_t>(size));
}

std::string path_in(int folder, const char* path) {
    return path[0] == '/' || folder == AT_FDCWD ? std::string(path) : path_of(folder) + "/" + path;
}

/// True with errno set if the call is to fail.
bool fails(std::string_view call, const std::string& path) {
    const int saved = errno;
    const int error = error_of(action_for(call, path));
    errno = error != 0 ? error : saved;
    return error != 0;
}

int open_file(int folder, const char* path, int flags, ::mode_t mode) {
    const bool writes = (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0;
    if (writes && fails("open", path_in(folder, path))) {
        return -1;
    }
    return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
}

::mode_t mode_of(int flags, std::va_list arguments) {
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, ::mode_t) : 0;
}

}  // namespace

// The declarations of the C library differ in attributes and in what is a macro of what.
extern "C" {

int open(const char* path, int flags, ...) {
    std::va_list arguments;
    va_start(arguments, flags);
    const ::mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return open_file(AT_FDCWD, path, flags, mode);
}

int open64(const char* path, int flags, ...) {
    std::va_list arguments;
    va_start(arguments, flags);
    const ::mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return open_file(AT_FDCWD, path, flags, mode);
}

ssize_t write(int descriptor, const void* bytes, size_t size) {
    const int saved = errno;
    const std::string action =
        rule_file() == nullptr ? std::string() : action_for("write", path_of(descriptor));
    if (const int error = error_of(action); error != 0) {
        errno = error;
        return -1;
    }
    errno = saved;
    if (action == "short" && size > 0) {
        size = 1;
    }
    if (action == "tear") {
        ::syscall(SYS_write, descriptor, bytes, size / 2);
        ::syscall(SYS_kill, ::getpid(), SIGKILL);
    }
    return ::syscall(SYS_write, descriptor, bytes, size);
}

ssize_t read(int descriptor, void* bytes, size_t size) {
    const int saved = errno;
    const std::string action =
        rule_file() == nullptr ? std::string() : action_for("read", path_of(descriptor));
    if (const int error = error_of(action); error != 0) {
        errno = error;
        return -1;
    }
    errno = saved;
    const ssize_t got = ::syscall(SYS_read, descriptor, bytes, size);
    if (action == "flip" && got > 0) {
        *static_cast<unsigned char*>(bytes) ^= 1;
    }
    return got;
}

int fsync(int descriptor) {
    if (rule_file() != nullptr && fails("sync", path_of(descriptor))) {
        return -1;
    }
    return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

int ftruncate(int descriptor, off_t size) noexcept {
    if (rule_file() != nullptr && fails("truncate", path_of(descriptor))) {
        return -1;
    }
    return static_cast<int>(::syscall(SYS_ftruncate, descriptor, size));
}

int rename(const char* from, const char* to) noexcept {
    if (fails("rename", std::string(from) + " " + to)) {
        return -1;
    }
    return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int unlink(const char* path) noexcept {
    if (fails("remove", path)) {
        return -1;
    }
    return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

int unlinkat(int folder, const char* path, int flags) noexcept {
    if (fails("remove", path_in(folder, path))) {
        return -1;
    }
    return static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags));
}

int mkdir(const char* path, mode_t mode) noexcept {
    if (fails("mkdir", path)) {
        return -1;
    }
    return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int symlink(const char* target, const char* path) noexcept {
    if (fails("symlink", path)) {
        return -1;
    }
    return static_cast<int>(::syscall(SYS_symlinkat, target, AT_FDCWD, path));
}

}  // extern "C"
