// SPDX-License-Identifier: Apache-2.0
#include <dflash/io/mapped_file.hpp>
#include <dflash/io/storage_error.hpp>
#include <dflash/train/journal_file.hpp>

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <unistd.h>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kSyncEvery(5);

}  // namespace

std::int64_t JournalFile::read(const std::string& path,
                               const Take& take,
                               std::int64_t from,
                               const Damaged& damaged) {
    if (fs::is_directory(path)) {
        throw Error(ErrorKind::Storage,
                    {.what = "this is a folder, expected a file of answers",
                     .where = path,
                     .cause = {},
                     .hint = "Move the folder away"});
    }
    if (!fs::exists(path) || fs::file_size(path) <= static_cast<std::uintmax_t>(from)) {
        return from;
    }
    const io::MappedFile file(path);
    const std::string_view text = file.text();
    std::int64_t number = from == 0 ? 0 : -1;  // lines before are not counted again
    auto begin = static_cast<std::size_t>(from);
    while (begin < text.size()) {
        const std::size_t end = text.find('\n', begin);
        if (end == std::string_view::npos) {
            break;  // cut by the end of the machine or a full disk
        }
        const std::string where = number < 0 ? fmt::format("{}, byte {}", path, begin)
                                             : fmt::format("{}:{}", path, ++number);
        const std::string_view bytes = text.substr(begin, end - begin);
        const auto offset = static_cast<std::int64_t>(begin);
        begin = end + 1;
        io::Json line;
        try {
            line = io::Json::parse(bytes, where);
        } catch (const Error& error) {
            if (!damaged) {
                throw;
            }
            damaged(error, where);
            continue;
        }
        take({.json = line, .text = bytes, .offset = offset, .where = where});
    }
    return static_cast<std::int64_t>(begin);
}

JournalFile::JournalFile(const std::string& path, std::int64_t size) : path_(path), size_(size) {
    if (size_ > 0) {
        open_to_read();
    }
}

JournalFile::JournalFile(const std::string& path, std::int64_t size, const std::string& header)
    : JournalFile(path, size) {
    begin_adding(header);
}

void JournalFile::open_to_read() {
    reading_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (reading_ < 0) {
        throw io::storage_error("cannot open the file", path_, errno);
    }
}

void JournalFile::begin_adding(const std::string& header) {
    file_.emplace(path_, io::OutputFile::Mode::Append);
    if (fs::file_size(path_) > static_cast<std::uintmax_t>(size_)) {
        file_->truncate(size_);
    }
    if (size_ == 0) {
        append(header);
        file_->sync();
    }
    if (reading_ < 0) {
        open_to_read();
    }
}

JournalFile::~JournalFile() {
    if (reading_ >= 0) {
        ::close(reading_);
    }
}

std::int64_t JournalFile::append(std::string_view line) {
    try {
        file_->write(line);
    } catch (...) {
        file_->truncate(size_);  // a full disk may have taken a part of the line
        throw;
    }
    const std::int64_t offset = size_;
    size_ += static_cast<std::int64_t>(line.size());
    const auto now = std::chrono::steady_clock::now();
    if (now - synced_ > kSyncEvery) {
        file_->sync();
        synced_ = now;
    }
    return offset;
}

std::string JournalFile::read_at(std::int64_t offset, std::int64_t bytes) const {
    std::string text(static_cast<std::size_t>(bytes), '\0');
    std::size_t done = 0;
    while (done < text.size()) {
        const ::ssize_t got = ::pread(reading_,
                                      text.data() + done,
                                      text.size() - done,
                                      static_cast<::off_t>(offset) + static_cast<::off_t>(done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            throw io::storage_error("cannot read the file", path_, got < 0 ? errno : EIO);
        }
        done += static_cast<std::size_t>(got);
    }
    return text;
}

void JournalFile::sync() {
    file_->sync();
}

void JournalFile::close() {
    file_->close();
}

}  // namespace dflash::train
