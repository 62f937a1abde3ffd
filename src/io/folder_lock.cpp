// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/io/folder_lock.hpp>
#include <dflash/io/storage_error.hpp>

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <fmt/format.h>
#include <fstream>
#include <optional>
#include <sstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace dflash::io {
namespace {

int open_folder(const std::string& folder) {
    int descriptor = -1;
    do {
        descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    } while (descriptor < 0 && errno == EINTR);
    return descriptor;
}

/// flock, not fcntl: a lock of its own for every open descriptor, which closing another one of the
/// same folder does not release. Returns 0 or errno.
int lock(int descriptor, int operation) {
    while (::flock(descriptor, operation | LOCK_NB) != 0) {
        if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

/// The process that holds the folder, by the system's list of locks: lines such as
/// "1: FLOCK  ADVISORY  WRITE 4711 08:01:131842 0 EOF", with device and inode in the sixth field.
std::optional<long> holder_of(int descriptor) {
    struct ::stat status {};

    if (::fstat(descriptor, &status) != 0) {
        return std::nullopt;
    }
    const std::string inode = fmt::format(":{}", status.st_ino);
    std::ifstream locks("/proc/locks");
    for (std::string line; std::getline(locks, line);) {
        std::istringstream fields(line);
        std::string number;
        std::string kind;
        std::string advisory;
        std::string access;
        long pid = 0;
        std::string file;
        // A process outside of this container has the id 0 here.
        if (fields >> number >> kind >> advisory >> access >> pid >> file && kind == "FLOCK" &&
            file.ends_with(inode) && pid > 0) {
            return pid;
        }
    }
    return std::nullopt;
}

[[noreturn]] void refuse(const std::string& folder, std::optional<long> holder) {
    throw Error(ErrorKind::Config,
                {.what = fmt::format("another process{} is writing to the folder",
                                     holder ? fmt::format(" ({})", *holder) : ""),
                 .where = folder,
                 .cause = {},
                 .hint = fmt::format("Wait until it ends, stop it (it saves first){}, or choose "
                                     "another folder",
                                     holder ? fmt::format(" with kill -INT {}", *holder) : "")});
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) : descriptor_(open_folder(folder)) {
    constexpr std::chrono::milliseconds kPause(20);
    constexpr int kAttempts = 25;
    if (descriptor_ < 0) {
        throw storage_error("cannot open the folder", folder, errno);
    }
    int error = lock(descriptor_, LOCK_EX);
    for (int i = 1; error == EWOULDBLOCK && i < kAttempts; ++i) {
        std::this_thread::sleep_for(kPause);
        error = lock(descriptor_, LOCK_EX);
    }
    if (error == EWOULDBLOCK) {
        const std::optional<long> holder = holder_of(descriptor_);
        ::close(descriptor_);
        refuse(folder, holder);
    }
    if (error != 0) {
        log_warning("{}: cannot be locked against a second process ({})",
                    folder,
                    std::generic_category().message(error));
    }
}

FolderLock::~FolderLock() {
    ::close(descriptor_);
}

bool FolderLock::is_held(const std::string& folder) {
    const int descriptor = open_folder(folder);
    if (descriptor < 0) {
        return false;
    }
    // Closing releases what is taken here; whoever wants the folder at that instant tries again.
    const ScopeGuard closer([descriptor] { ::close(descriptor); });
    return lock(descriptor, LOCK_SH) == EWOULDBLOCK;
}

}  // namespace dflash::io
