// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/io/output_file.hpp>
#include <dflash/io/storage_error.hpp>

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace dflash::io {
namespace {

int open_flags(OutputFile::Mode mode) {
    // O_NONBLOCK: opening a named pipe must not wait for its reader before it can be refused.
    constexpr int kAlways = O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK;
    switch (mode) {
        case OutputFile::Mode::Create:
            return kAlways | O_TRUNC;
        case OutputFile::Mode::CreateNew:
            return kAlways | O_EXCL;
        case OutputFile::Mode::Append:
            return kAlways | O_APPEND;
    }
    return kAlways;
}

}  // namespace

OutputFile::OutputFile(std::string path, Mode mode) : path_(std::move(path)) {
    do {
        descriptor_ = ::open(path_.c_str(), open_flags(mode), 0666);
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) {
        throw storage_error("cannot open for writing", path_, errno);
    }

    struct ::stat status {};

    if (::fstat(descriptor_, &status) != 0 ||
        !(S_ISREG(status.st_mode) || S_ISCHR(status.st_mode))) {
        ::close(std::exchange(descriptor_, -1));
        throw Error(ErrorKind::Storage,
                    {.what = "cannot write: this is there, and no regular file",
                     .where = path_,
                     .cause = {},
                     .hint = "Move it away"});
    }
    ::fcntl(descriptor_, F_SETFL, ::fcntl(descriptor_, F_GETFL) & ~O_NONBLOCK);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
    if (this != &other) {
        if (descriptor_ >= 0) {
            ::close(descriptor_);
        }
        path_ = std::move(other.path_);
        descriptor_ = std::exchange(other.descriptor_, -1);
    }
    return *this;
}

OutputFile::~OutputFile() {
    if (descriptor_ >= 0) {
        ::close(descriptor_);
    }
}

void OutputFile::write(std::span<const std::byte> bytes) {
    DFLASH_CHECK(descriptor_ >= 0, "{} is written after it was closed", path_);
    while (!bytes.empty()) {
        const ::ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
        if (written < 0) {
            if (errno == EINTR) {
                continue;
            }
            throw storage_error("cannot write", path_, errno);
        }
        bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
}

void OutputFile::write(std::string_view text) {
    write(std::as_bytes(std::span(text.data(), text.size())));
}

void OutputFile::sync() {
    DFLASH_CHECK(descriptor_ >= 0, "{} is synchronised after it was closed", path_);
    if (::fsync(descriptor_) != 0) {
        throw storage_error("cannot write to disk", path_, errno);
    }
}

void OutputFile::truncate(std::int64_t size) {
    // The offset of a file that is not in append mode has to follow its end.
    if (::ftruncate(descriptor_, size) != 0 || ::lseek(descriptor_, size, SEEK_SET) < 0) {
        throw storage_error("cannot cut", path_, errno);
    }
}

void OutputFile::close() {
    // close() must not be repeated after EINTR: Linux has released the descriptor by then.
    const int descriptor = std::exchange(descriptor_, -1);
    if (descriptor >= 0 && ::close(descriptor) != 0 && errno != EINTR) {
        throw storage_error("cannot finish writing", path_, errno);
    }
}

}  // namespace dflash::io
