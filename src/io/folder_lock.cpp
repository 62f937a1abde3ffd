// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/io/folder_lock.hpp>
#include <dflash/io/storage_error.hpp>

#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <system_error>
#include <unistd.h>

namespace dflash::io {

FolderLock::FolderLock(const std::string& folder) {
    do {
        descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) {
        throw storage_error("cannot open the folder", folder, errno);
    }
    // flock, not fcntl: a lock of its own for every open descriptor, which closing another one of
    // the same folder does not release.
    int result = 0;
    do {
        result = ::flock(descriptor_, LOCK_EX | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    if (result == 0) {
        return;
    }
    const int error = errno;
    if (error == EWOULDBLOCK) {
        ::close(descriptor_);
        throw Error(ErrorKind::Config,
                    {.what = "another process is writing to the folder",
                     .where = folder,
                     .cause = {},
                     .hint = "Wait until it ends, stop it, or choose another folder"});
    }
    log_warning("{}: cannot be locked against a second process ({})",
                folder,
                std::generic_category().message(error));
}

FolderLock::~FolderLock() {
    ::close(descriptor_);
}

}  // namespace dflash::io
