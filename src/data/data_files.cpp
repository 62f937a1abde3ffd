// SPDX-License-Identifier: Apache-2.0
#include "data_files.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/random.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/jsonl.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace dflash::data {

namespace {

FileContent content_of(std::string_view bytes) {
    return {.bytes = static_cast<std::int64_t>(bytes.size()),
            .hash = stable_hash(bytes.data(), bytes.size())};
}

}  // namespace

DataFiles::DataFiles(const std::vector<std::string>& paths, const RowFileOptions& options) {
    first_rows_.push_back(0);
    for (const std::string& path : paths) {
        const RowFile& file = files_.emplace_back(path, options);
        first_rows_.push_back(first_rows_.back() + file.size());
    }
}

std::size_t DataFiles::file_of(SampleId id) const {
    DFLASH_CHECK(id >= 0 && id < num_rows(), "sample {} of {}", id, num_rows());
    const auto behind = std::upper_bound(first_rows_.begin(), first_rows_.end(), id);
    return static_cast<std::size_t>(behind - first_rows_.begin() - 1);
}

DataFiles::Place DataFiles::find(SampleId id) const {
    const std::size_t file = file_of(id);
    return {.file = files_[file], .row = id - first_rows_[file]};
}

std::int64_t DataFiles::num_blank() const {
    std::int64_t sum = 0;
    for (const RowFile& file : files_) {
        sum += file.num_blank();
    }
    return sum;
}

std::string_view DataFiles::text(SampleId id) const {
    const Place at = find(id);
    return at.file.text(at.row);
}

std::string DataFiles::place(SampleId id) const {
    const Place at = find(id);
    return fmt::format("{}:{}", at.file.path(), at.file.place(at.row).line);
}

std::string DataFiles::place(SampleId id, const RowFault& fault) const {
    const Place at = find(id);
    const RowPlace begin = at.file.place(at.row);
    return fmt::format("{}:{}:{}",
                       at.file.path(),
                       begin.line + fault.line,
                       fault.column + (fault.line == 0 ? begin.column - 1 : 0));
}

bool DataFiles::ends_file(SampleId id) const {
    const Place at = find(id);
    return at.file.ends_file(at.row);
}

std::vector<FileContent> DataFiles::contents() const {
    std::vector<FileContent> contents;
    for (const RowFile& file : files_) {
        contents.push_back(file.content());
    }
    return contents;
}

std::int64_t DataFiles::bytes(std::size_t file) const {
    return std::ssize(files_[file].bytes());
}

void DataFiles::forget(SampleId begin, SampleId end) const {
    for (std::size_t i = 0; i < files_.size(); ++i) {
        const SampleId first = std::max(begin, first_rows_[i]);
        const SampleId behind = std::min(end, first_rows_[i + 1]);
        if (first < behind) {
            files_[i].forget(first - first_rows_[i], behind - first_rows_[i]);
        }
    }
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
        const RowFile& file = files_[i];
        const std::string_view bytes = file.bytes();
        const auto size = static_cast<std::int64_t>(bytes.size());
        const std::int64_t size_before = before.files[i].bytes;
        if (size < size_before) {
            return other(fmt::format("{} has {} bytes, {} before",
                                     file.path(),
                                     format_count(size),
                                     format_count(size_before)));
        }
        const FileContent same =
            size == size_before
                ? file.content()
                : content_of(bytes.substr(0, static_cast<std::size_t>(size_before)));
        if (same != before.files[i]) {
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
    const RowFile& file = files_[before.files.size() - 1];
    const auto size_before = static_cast<std::size_t>(before.files.back().bytes);
    const std::string_view bytes_before = file.bytes().substr(0, size_before);
    if (bytes_before.ends_with('\n')) {
        return false;
    }
    // The last row that begins in those bytes.
    std::int64_t first = 0;
    std::int64_t behind = file.size();
    while (first < behind) {
        const std::int64_t middle = (first + behind) / 2;
        if (file.offset(middle) < before.files.back().bytes) {
            first = middle + 1;
        } else {
            behind = middle;
        }
    }
    const std::int64_t last = behind - 1;
    if (last < 0 || first_rows_[before.files.size() - 1] + last >= before.num_rows) {
        return false;  // it was blank, or cut and refused: it becomes a row only now
    }
    const auto start = static_cast<std::size_t>(file.offset(last));
    return io::strip_line(bytes_before.substr(start)) != file.text(last);
}

}  // namespace dflash::data
