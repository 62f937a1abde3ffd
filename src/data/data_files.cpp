// SPDX-License-Identifier: Apache-2.0
#include "data_files.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/random.hpp>
#include <dflash/core/text.hpp>

#include <algorithm>
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

FileContent content_of(std::string_view bytes) {
    return {.bytes = static_cast<std::int64_t>(bytes.size()),
            .hash = stable_hash(bytes.data(), bytes.size())};
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

std::vector<FileContent> DataFiles::contents() const {
    std::vector<FileContent> contents;
    for (const io::JsonLines& file : files_) {
        contents.push_back(content_of(file.bytes()));
    }
    return contents;
}

DataComparison DataFiles::compare_with(const DataState& before) const {
    const auto other = [](std::string difference) {
        return DataComparison{DataChange::Other, std::move(difference), 0};
    };
    if (files_.size() < before.files.size()) {
        return other(
            fmt::format("there are {} data files, {} before", files_.size(), before.files.size()));
    }
    std::string growth;
    for (std::size_t i = 0; i < before.files.size(); ++i) {
        const io::JsonLines& file = files_[i];
        const std::string_view bytes = file.bytes();
        const auto size = static_cast<std::int64_t>(bytes.size());
        const std::int64_t size_before = before.files[i].bytes;
        if (size < size_before) {
            return other(fmt::format("{} has {} bytes, {} before",
                                     file.path(),
                                     format_count(size),
                                     format_count(size_before)));
        }
        if (content_of(bytes.substr(0, static_cast<std::size_t>(size_before))) != before.files[i]) {
            return other(fmt::format("the first {} bytes of {} are not those of before",
                                     format_count(size_before),
                                     file.path()));
        }
        if (size == size_before) {
            continue;
        }
        growth = fmt::format("{} has {} bytes, {} before",
                             file.path(),
                             format_count(size),
                             format_count(size_before));
        // The id of a row is its place in the list, and anchors and order are drawn by it.
        if (i + 1 < before.files.size()) {
            return other(growth +
                         ", but only the last file may grow; put new rows into a file of "
                         "their own at the end of the list");
        }
        if (continues_a_row(before)) {
            return other(growth + ", and the new ones continue its former last row");
        }
    }
    for (std::size_t i = before.files.size(); i < files_.size(); ++i) {
        growth += fmt::format("{}{} is new", growth.empty() ? "" : ", ", files_[i].path());
    }
    return {growth.empty() ? DataChange::None : DataChange::Grown, growth, 0};
}

/// Whether the last row of `before`, which may have had no line end, is another row now that its
/// file goes on. Only to be asked when the bytes of before are there.
bool DataFiles::continues_a_row(const DataState& before) const {
    const io::JsonLines& file = files_[before.files.size() - 1];
    const auto size_before = static_cast<std::size_t>(before.files.back().bytes);
    const std::string_view bytes_before = file.bytes().substr(0, size_before);
    if (bytes_before.ends_with('\n')) {
        return false;
    }
    const std::size_t start = bytes_before.rfind('\n') + 1;  // 0 without one
    const auto first_behind =
        std::partition_point(rows_.begin(), rows_.end(), [&](const Row& candidate) {
            const auto index = static_cast<std::size_t>(candidate.file);
            return index + 1 < before.files.size() ||
                   (index + 1 == before.files.size() &&
                    file.line(candidate.line).offset < static_cast<std::int64_t>(size_before));
        });
    const SampleId last = first_behind - rows_.begin() - 1;
    if (last >= before.num_rows) {
        return false;  // it was blank, or cut and refused: it becomes a row only now
    }
    return io::strip_line(bytes_before.substr(start)) != text(last);
}

}  // namespace dflash::data
