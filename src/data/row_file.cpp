// SPDX-License-Identifier: Apache-2.0
#include "row_index.hpp"
#include "value_scanner.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/random.hpp>
#include <dflash/data/row_file.hpp>
#include <dflash/io/jsonl.hpp>
#include <dflash/io/unpacked_file.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fmt/format.h>
#include <optional>
#include <sys/stat.h>
#include <utility>

namespace dflash::data {

namespace {

struct Foreign {
    std::string_view mark;  // the first bytes
    std::string_view name;
    std::string_view hint;
};

constexpr std::string_view kConvert = "Convert it to one JSON object a line";

// What a file is, by its first bytes, if it is something that people take for JSON lines.
const Foreign* foreign_format(std::string_view bytes) {
    using namespace std::string_view_literals;
    static constexpr std::string_view kUtf8 = "Convert it: iconv -f UTF-16 -t UTF-8 FILE > FILE.8";
    static constexpr std::string_view kTable = "Convert it: tools/data_to_jsonl FILE OUT.jsonl";
    static constexpr std::array<Foreign, 10> kFormats{{
        {"PAR1"sv, "a Parquet file", kTable},
        {"ARROW1"sv, "an Arrow file", kTable},
        {"\xff\xff\xff\xff"sv, "an Arrow stream", kTable},
        {"\xff\xfe"sv, "UTF-16 text", kUtf8},
        {"\xfe\xff"sv, "UTF-16 text", kUtf8},
        {"{\0"sv, "UTF-16 text", kUtf8},
        {"PK\x03\x04"sv, "a ZIP archive", kConvert},
        {"\xfd"
         "7zXZ\0"sv,
         "an xz archive",
         kConvert},
        {"BZh"sv, "a bzip2 archive", kConvert},
        {"SQLite format 3\0"sv, "an SQLite database", kConvert},
    }};
    const auto found = std::find_if(kFormats.begin(), kFormats.end(), [&](const Foreign& format) {
        return bytes.starts_with(format.mark);
    });
    return found == kFormats.end() ? nullptr : &*found;
}

[[noreturn]] void refuse_file(const std::string& path, std::string what, std::string hint) {
    throw Error(ErrorKind::Data,
                {.what = std::move(what), .where = path, .cause = {}, .hint = std::move(hint)});
}

std::optional<FileStamp> stamp_of(const std::string& path) {
    struct ::stat status {};

    if (::stat(path.c_str(), &status) != 0) {
        return std::nullopt;
    }
    return FileStamp{.bytes = status.st_size,
                     .modified_ns = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 +
                                    status.st_mtim.tv_nsec};
}

// A file that was written a moment ago may be written again within the grain of its time.
bool is_settled(const FileStamp& stamp) {
    const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
    return now - stamp.modified_ns > 2'000'000'000;
}

std::string index_path_of(const std::string& path, const std::string& folder) {
    const std::string whole = std::filesystem::absolute(path).lexically_normal().string();
    return fmt::format("{}/{}-{:016x}.rows",
                       folder,
                       std::filesystem::path(path).filename().string(),
                       stable_hash(whole.data(), whole.size()));
}

}  // namespace

struct RowFile::State {
    State(const std::string& file_path, const RowFileOptions& options);

    void check_format() const;
    void check_rows() const;
    RowIndex find_rows(const RowFileOptions& options);

    std::string path;
    io::UnpackedFile file;
    bool used_index = false;
    RowIndex index;
};

RowFile::State::State(const std::string& file_path, const RowFileOptions& options)
    : path(file_path), file(file_path, options.cache_folder), index(find_rows(options)) {
    check_rows();
}

void RowFile::State::check_format() const {
    if (file.text().empty()) {
        refuse_file(path,
                    "the file is empty, expected one row a line",
                    "Write the file again, or leave it out of the list");
    }
    if (const Foreign* foreign = foreign_format(file.text())) {
        refuse_file(path,
                    fmt::format("the file is {}, expected JSON lines in UTF-8", foreign->name),
                    std::string(foreign->hint));
    }
}

RowIndex RowFile::State::find_rows(const RowFileOptions& options) {
    check_format();
    const std::optional<FileStamp> stamp = stamp_of(path);
    const bool is_kept = stamp && !options.cache_folder.empty() && !file.is_packed() &&
                         stamp->bytes >= options.index_from_bytes;
    if (!is_kept) {
        return RowIndex::build(file, path);
    }
    const std::string index_path = index_path_of(path, options.cache_folder);
    if (std::optional<RowIndex> kept = RowIndex::load(index_path, *stamp);
        kept && kept->content().bytes == static_cast<std::int64_t>(file.text().size())) {
        used_index = true;
        return *std::move(kept);
    }
    RowIndex built = RowIndex::build(file, path);
    if (is_settled(*stamp) && stamp_of(path) == stamp) {
        try {
            built.save(index_path, *stamp);
        } catch (const Error& error) {
            log_warning("the places of the rows of {} are not kept for the next time: {}",
                        path,
                        error.what());
        }
    }
    return built;
}

void RowFile::State::check_rows() const {
    const std::string_view bytes = file.text();
    if (index.offsets().empty()) {
        refuse_file(path,
                    index.layout() == RowLayout::Array
                        ? "the file is an empty JSON array, expected rows in it"
                        : "the file has only blank lines, expected one row a line",
                    "Write the file again, or leave it out of the list");
    }
    // Its one line would be refused, with nothing said about what to do.
    const auto first = static_cast<std::size_t>(index.offsets().front());
    if (index.offsets().size() == 1 && index.layout() == RowLayout::Lines) {
        const ValueEnd end = find_value_end(bytes, first);
        const std::size_t next = skip_json_blanks(bytes, end.end);
        const bool has_cr =
            bytes.substr(end.end, next - end.end).find('\r') != std::string_view::npos;
        if (end.kind == ValueEnd::Kind::Whole && next < bytes.size() && has_cr) {
            refuse_file(path,
                        "lines end with CR alone, expected LF",
                        "Convert the line ends: tr '\\r' '\\n' < FILE > FILE.jsonl");
        }
    }
}

RowFile::RowFile(const std::string& path, const RowFileOptions& options)
    : state_(std::make_unique<const State>(path, options)) {}

RowFile::RowFile(RowFile&&) noexcept = default;
RowFile& RowFile::operator=(RowFile&&) noexcept = default;
RowFile::~RowFile() = default;

std::int64_t RowFile::size() const {
    return std::ssize(state_->index.offsets());
}

std::int64_t RowFile::num_blank() const {
    return std::ssize(state_->index.blanks());
}

RowLayout RowFile::layout() const {
    return state_->index.layout();
}

std::int64_t RowFile::offset(std::int64_t row) const {
    DFLASH_CHECK(row >= 0 && row < size(), "row {} of {}, which has {}", row, path(), size());
    return state_->index.offsets()[static_cast<std::size_t>(row)];
}

std::string_view RowFile::text(std::int64_t row) const {
    const std::string_view bytes = state_->file.text();
    const auto begin = static_cast<std::size_t>(offset(row));
    if (layout() == RowLayout::Lines) {
        const std::size_t end = std::min(bytes.find('\n', begin), bytes.size());
        return io::strip_line(bytes.substr(begin, end - begin));
    }
    return bytes.substr(begin, find_value_end(bytes, begin).end - begin);
}

RowPlace RowFile::place(std::int64_t row) const {
    const std::string_view bytes = state_->file.text();
    if (layout() == RowLayout::Lines) {
        const std::span<const std::int64_t> blanks = state_->index.blanks();
        const auto blanks_before =
            std::upper_bound(blanks.begin(), blanks.end(), row) - blanks.begin();
        return {.line = 1 + row + blanks_before, .column = 1};
    }
    const std::string_view before = bytes.substr(0, static_cast<std::size_t>(offset(row)));
    const std::string_view line = before.substr(before.rfind('\n') + 1);  // npos + 1 is 0
    return {.line = 1 + std::count(before.begin(), before.end(), '\n'),
            .column = 1 + std::count_if(line.begin(), line.end(), [](char c) {
                          return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
                      })};
}

bool RowFile::ends_file(std::int64_t row) const {
    if (row + 1 < size()) {
        return false;
    }
    const std::string_view bytes = state_->file.text();
    const auto begin = static_cast<std::size_t>(offset(row));
    return layout() == RowLayout::Lines ? bytes.find('\n', begin) == std::string_view::npos
                                        : find_value_end(bytes, begin).kind == ValueEnd::Kind::Cut;
}

const std::string& RowFile::path() const {
    return state_->path;
}

std::string_view RowFile::bytes() const {
    return state_->file.text();
}

const FileContent& RowFile::content() const {
    return state_->index.content();
}

bool RowFile::used_index() const {
    return state_->used_index;
}

void RowFile::forget(std::int64_t begin, std::int64_t end) const {
    const auto first = static_cast<std::size_t>(offset(begin));
    const std::size_t behind =
        end < size() ? static_cast<std::size_t>(offset(end)) : bytes().size();
    state_->file.forget(first, behind - first);
}

}  // namespace dflash::data
