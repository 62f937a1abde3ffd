// SPDX-License-Identifier: Apache-2.0
#include "compression.hpp"

#include <dflash/core/activity.hpp>
#include <dflash/core/check.hpp>
#include <dflash/io/jsonl.hpp>
#include <dflash/io/mapped_file.hpp>

#include <cstring>
#include <fmt/format.h>
#include <optional>
#include <system_error>
#include <vector>

namespace dflash::io {

std::string_view strip_line(std::string_view line) {
    if (line.starts_with("\xEF\xBB\xBF")) {
        line.remove_prefix(3);
    }
    const std::size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) {
        return {};
    }
    return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

struct JsonLines::Content {
    explicit Content(const std::string& file_path) : path(file_path) {
        // What is not there is a wrong command line; what is there but holds no rows is wrong data,
        // a folder like an empty file.
        file.emplace(path, ErrorKind::Config, ErrorKind::Data);
        compression = compression_of(file->bytes());
        if (compression == Compression::None) {
            bytes = file->text();
        } else {
            file->advise(MappedFile::Advice::Sequential);
            unpacked = unpack(file->bytes(), path);
            bytes = unpacked;
            file.reset();
        }
        const char* const begin = bytes.data();
        const char* const end = begin + bytes.size();
        for (const char* at = begin; at != end;) {
            starts.push_back(at - begin);
            note_progress();
            const void* newline = std::memchr(at, '\n', static_cast<std::size_t>(end - at));
            at = newline == nullptr ? end : static_cast<const char*>(newline) + 1;
        }
    }

    std::string path;
    Compression compression = Compression::None;
    std::optional<MappedFile> file;  // of a plain file
    std::string unpacked;            // of a packed one
    std::string_view bytes;
    std::vector<std::int64_t> starts;  // offset of each line's first byte
};

JsonLines::JsonLines(const std::string& path) : content_(std::make_unique<const Content>(path)) {}

JsonLines::JsonLines(JsonLines&&) noexcept = default;
JsonLines& JsonLines::operator=(JsonLines&&) noexcept = default;
JsonLines::~JsonLines() = default;

std::int64_t JsonLines::size() const {
    return static_cast<std::int64_t>(content_->starts.size());
}

Line JsonLines::line(std::int64_t number) const {
    DFLASH_CHECK(
        number >= 1 && number <= size(), "line {} of {}, which has {}", number, path(), size());
    const auto index = static_cast<std::size_t>(number - 1);
    const std::int64_t start = content_->starts[index];
    const std::int64_t end =
        index + 1 < content_->starts.size()
            ? content_->starts[index + 1] - 1
            : static_cast<std::int64_t>(content_->bytes.size()) - (ends_in_newline() ? 1 : 0);
    return {.number = number,
            .offset = start,
            .text = strip_line(content_->bytes.substr(static_cast<std::size_t>(start),
                                                      static_cast<std::size_t>(end - start)))};
}

std::string JsonLines::place(std::int64_t number) const {
    return fmt::format("{}:{}", path(), number);
}

const std::string& JsonLines::path() const {
    return content_->path;
}

Compression JsonLines::compression() const {
    return content_->compression;
}

std::string_view JsonLines::bytes() const {
    return content_->bytes;
}

bool JsonLines::ends_in_newline() const {
    return content_->bytes.ends_with('\n');
}

}  // namespace dflash::io
