// SPDX-License-Identifier: Apache-2.0
#include <dflash/io/atomic_file.hpp>
#include <dflash/io/storage_error.hpp>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace dflash::io {
namespace {

namespace fs = std::filesystem;

std::string folder_of(const std::string& path) {
    const std::string folder = fs::path(path).parent_path().string();
    return folder.empty() ? "." : folder;
}

/// "DIR/.NAME.tmp-PID-N": unique among the processes of the machine and the calls of this one.
std::string temporary_name(const std::string& path) {
    static std::atomic<std::uint64_t> counter = 0;
    const fs::path p(path);
    const std::string name =
        fmt::format(".{}.tmp-{}-{}", p.filename().string(), ::getpid(), counter.fetch_add(1));
    return (p.parent_path() / name).string();
}

void sync_path(const std::string& path, int flags) {
    int descriptor = -1;
    do {
        descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
    } while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0) {
        throw storage_error("cannot open", path, errno);
    }
    const int result = ::fsync(descriptor);
    const int error = errno;
    ::close(descriptor);
    // Some network file systems refuse fsync of a folder and need none.
    if (result != 0 && !((flags & O_DIRECTORY) != 0 && error == EINVAL)) {
        throw storage_error("cannot write to disk", path, error);
    }
}

}  // namespace

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)), file_(temporary_name(path_), OutputFile::Mode::CreateNew) {}

AtomicFile::~AtomicFile() {
    if (!committed_) {
        ::unlink(file_.path().c_str());
    }
}

void AtomicFile::commit() {
    // The bytes must be on the disk before the name is, or a crash can leave an empty file.
    file_.sync();
    file_.close();
    if (std::rename(file_.path().c_str(), path_.c_str()) != 0) {
        throw storage_error("cannot replace", path_, errno);
    }
    committed_ = true;
    sync_folder(folder_of(path_));
}

void write_file_atomically(const std::string& path, std::string_view text) {
    AtomicFile file(path);
    file.write(text);
    file.commit();
}

void publish_folder(const std::string& temporary, const std::string& final_path) {
    try {
        for (const fs::directory_entry& entry : fs::recursive_directory_iterator(temporary)) {
            if (entry.is_symlink()) {
                continue;  // lies in its folder, which is synchronised as well
            }
            if (entry.is_directory()) {
                sync_folder(entry.path().string());
            } else if (entry.is_regular_file()) {
                sync_path(entry.path().string(), 0);
            }
        }
    } catch (const fs::filesystem_error& error) {
        throw storage_error("cannot read the folder", temporary, error.code().value());
    }
    sync_folder(temporary);  // the names in it
    if (std::rename(temporary.c_str(), final_path.c_str()) != 0) {
        throw storage_error(fmt::format("cannot rename {} to", temporary), final_path, errno);
    }
    sync_folder(folder_of(final_path));
}

void replace_symlink(const std::string& link, const std::string& target) {
    const std::string temporary = temporary_name(link);
    if (::symlink(target.c_str(), temporary.c_str()) != 0) {
        throw storage_error("cannot create the link", temporary, errno);
    }
    if (std::rename(temporary.c_str(), link.c_str()) != 0) {
        const int error = errno;
        ::unlink(temporary.c_str());
        throw storage_error("cannot replace the link", link, error);
    }
    sync_folder(folder_of(link));
}

void create_folders(const std::string& path) {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) {
        throw storage_error("cannot create the folder", path, error.value());
    }
}

void sync_folder(const std::string& path) {
    sync_path(path, O_DIRECTORY);
}

}  // namespace dflash::io
