// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/scope.hpp>
#include <dflash/io/mapped_file.hpp>
#include <dflash/io/storage_error.hpp>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace dflash::io {
namespace {

int system_advice(MappedFile::Advice advice) {
    switch (advice) {
        case MappedFile::Advice::Normal:
            return MADV_NORMAL;
        case MappedFile::Advice::Sequential:
            return MADV_SEQUENTIAL;
        case MappedFile::Advice::Random:
            return MADV_RANDOM;
        case MappedFile::Advice::WillNeed:
            return MADV_WILLNEED;
        case MappedFile::Advice::DontNeed:
            return MADV_DONTNEED;
    }
    return MADV_NORMAL;
}

Error not_regular(const std::string& path, ::mode_t mode, ErrorKind kind) {
    return {kind,
            {.what = fmt::format(
                 "{} is {}, expected a file", path, S_ISDIR(mode) ? "a folder" : "no regular file"),
             .where = path,
             .cause = {},
             .hint = S_ISFIFO(mode) ? "Write what comes out of the pipe to a file first"
                                    : "Check the path"}};
}

}  // namespace

MappedFile::MappedFile(std::string path, ErrorKind kind, ErrorKind other_kind)
    : path_(std::move(path)) {
    // O_NONBLOCK: opening a named pipe must not wait for its writer before it can be refused.
    int descriptor = -1;
    do {
        descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0 && errno == ENXIO) {
        throw not_regular(path_, S_IFSOCK, other_kind);
    }
    if (descriptor < 0) {
        throw storage_error("cannot read", path_, errno, kind);
    }
    const ScopeGuard closer([descriptor] { ::close(descriptor); });

    struct ::stat status {};

    if (::fstat(descriptor, &status) != 0) {
        throw storage_error("cannot read", path_, errno, kind);
    }
    if (!S_ISREG(status.st_mode)) {
        throw not_regular(path_, status.st_mode, other_kind);
    }
    if (status.st_size == 0) {
        return;
    }
    const auto size = static_cast<std::size_t>(status.st_size);
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (address == MAP_FAILED) {
        throw storage_error("cannot map", path_, errno, kind);
    }
    bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    if (this != &other) {
        unmap();
        path_ = std::move(other.path_);
        bytes_ = std::exchange(other.bytes_, {});
    }
    return *this;
}

MappedFile::~MappedFile() {
    unmap();
}

void MappedFile::unmap() noexcept {
    if (!bytes_.empty()) {
        ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
        bytes_ = {};
    }
}

std::string_view MappedFile::text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
}

void MappedFile::advise(Advice advice, std::size_t offset, std::size_t size) const {
    if (offset >= bytes_.size()) {
        return;
    }
    // madvise wants an address at a page boundary: the part begins at the page that holds offset.
    static const auto page_size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t start = offset / page_size * page_size;
    const std::size_t end = offset + std::min(size, bytes_.size() - offset);
    ::madvise(const_cast<std::byte*>(bytes_.data()) + start, end - start, system_advice(advice));
}

}  // namespace dflash::io
