// SPDX-License-Identifier: Apache-2.0
#include "data_files.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/random.hpp>

#include <array>
#include <optional>
#include <utility>

namespace dflash::data {

namespace {

// What a file is, by its first bytes, if it is something that people take for JSON lines.
std::optional<std::string_view> foreign_format(std::string_view bytes) {
    using namespace std::string_view_literals;
    constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kMarks{{
        {"PAR1"sv, "a Parquet file"},
        {"\xff\xfe"sv, "UTF-16 text"},
        {"\xfe\xff"sv, "UTF-16 text"},
        {"ARROW1"sv, "an Arrow file"},
        {"PK\x03\x04"sv, "a ZIP archive"},
        {"\xfd"
         "7zXZ\0"sv,
         "an xz archive"},
        {"BZh"sv, "a bzip2 archive"},
        {"SQLite format 3\0"sv, "an SQLite database"},
    }};
    for (const auto& [mark, name] : kMarks) {
        if (bytes.starts_with(mark)) {
            return name;
        }
    }
    return std::nullopt;
}

constexpr const char* kWriteAgain = "Write the file again, or leave it out of the list";

[[noreturn]] void refuse_file(const io::JsonLines& file, std::string what, std::string hint) {
    throw Error(
        ErrorKind::Data,
        {.what = std::move(what), .where = file.path(), .cause = {}, .hint = std::move(hint)});
}

}  // namespace

DataFiles::DataFiles(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
        const auto file_index = narrow<std::int32_t>(files_.size());
        const io::JsonLines& file = files_.emplace_back(path);
        if (file.bytes().empty()) {
            refuse_file(file, "the file is empty, expected one row a line", kWriteAgain);
        }
        if (const auto format = foreign_format(file.bytes())) {
            refuse_file(file,
                        fmt::format("the file is {}, expected JSON lines in UTF-8", *format),
                        "Convert it to one JSON object a line");
        }
        const std::size_t rows_before = rows_.size();
        for (std::int64_t line = 1; line <= file.size(); ++line) {
            if (file.line(line).text.empty()) {
                ++num_blank_;
            } else {
                rows_.push_back({.file = file_index, .line = line});
            }
        }
        if (rows_.size() == rows_before) {
            refuse_file(
                file, "the file has only blank lines, expected one row a line", kWriteAgain);
        }
        // Its lines would all be refused one by one, with nothing said about the file.
        const std::string_view first = file.line(rows_[rows_before].line).text;
        if (first == "[" || first == "{") {
            refuse_file(file,
                        "the file is one JSON value over many lines, expected one row a line",
                        "Convert it: jq -c '.[]' FILE > FILE.jsonl (jq -c . for objects)");
        }
    }
}

const DataFiles::Row& DataFiles::row(SampleId id) const {
    DFLASH_CHECK(id >= 0 && id < num_rows(), "sample {} of {}", id, num_rows());
    return rows_[static_cast<std::size_t>(id)];
}

std::string_view DataFiles::text(SampleId id) const {
    const Row& at = row(id);
    return files_[static_cast<std::size_t>(at.file)].line(at.line).text;
}

std::string DataFiles::place(SampleId id) const {
    const Row& at = row(id);
    return files_[static_cast<std::size_t>(at.file)].place(at.line);
}

bool DataFiles::is_open_end(SampleId id) const {
    const Row& at = row(id);
    const io::JsonLines& file = files_[static_cast<std::size_t>(at.file)];
    return at.line == file.size() && !file.ends_in_newline();
}

std::uint64_t DataFiles::content_hash() const {
    std::string hashes;
    for (const io::JsonLines& file : files_) {
        const std::string_view bytes = file.bytes();
        hashes += fmt::format("{}:{:016x};", bytes.size(), stable_hash(bytes.data(), bytes.size()));
    }
    return stable_hash(hashes.data(), hashes.size());
}

}  // namespace dflash::data
