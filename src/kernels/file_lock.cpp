// SPDX-License-Identifier: Apache-2.0
#include "file_lock.hpp"

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <thread>
#include <unistd.h>

namespace dflash::kernels {

std::shared_ptr<FileLock> FileLock::acquire(const std::string& path,
                                            std::int64_t number,
                                            double timeout_s) {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(timeout_s);
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) {
        return nullptr;
    }
    auto lock = std::make_shared<FileLock>(descriptor);

    // Locks of an open file description: they also hold between threads, work on NFS, and are given
    // back by the kernel whatever ends the process (fcntl(2)).
    struct flock range {};

    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    range.l_start = number;
    range.l_len = 1;
    constexpr std::chrono::milliseconds kPoll(10);
    while (::fcntl(descriptor, F_OFD_SETLK, &range) != 0) {
        if ((errno != EAGAIN && errno != EACCES && errno != EINTR) || Clock::now() >= end) {
            return nullptr;
        }
        std::this_thread::sleep_for(kPoll);
    }
    return lock;
}

FileLock::~FileLock() {
    ::close(descriptor_);
}

}  // namespace dflash::kernels
