// SPDX-License-Identifier: Apache-2.0
// The index file: a header, the offsets of the rows, the places of the blank lines; all numbers are
// 64 bits, little-endian, as the machines we run on have them.
#include "row_index.hpp"

#include "value_scanner.hpp"

#include <dflash/core/activity.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/random.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/io/json.hpp>
#include <dflash/io/jsonl.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>

namespace dflash::data {

static_assert(std::endian::native == std::endian::little);

namespace {

constexpr std::array<char, 8> kMagic = {'D', 'F', 'R', 'O', 'W', 'S', '0', '1'};

struct Header {
    std::array<char, 8> magic{};
    std::int64_t file_bytes = 0;
    std::int64_t modified_ns = 0;
    std::int64_t content_bytes = 0;
    std::uint64_t content_hash = 0;
    std::int64_t layout = 0;
    std::int64_t num_rows = 0;
    std::int64_t num_blanks = 0;
    std::uint64_t numbers_hash = 0;
};

static_assert(std::is_trivially_copyable_v<Header>);

std::uint64_t hash_of(std::span<const std::int64_t> offsets, std::span<const std::int64_t> blanks) {
    const std::array<std::uint64_t, 2> parts = {
        stable_hash(reinterpret_cast<const char*>(offsets.data()), offsets.size_bytes()),
        stable_hash(reinterpret_cast<const char*>(blanks.data()), blanks.size_bytes())};
    return stable_hash(reinterpret_cast<const char*>(parts.data()), sizeof(parts));
}

// Gives the pages of a file back behind whoever reads it from front to back.
class ReadPages {
  public:
    explicit ReadPages(const io::UnpackedFile& file) : file_(file) {}

    void read_to(std::size_t at) {
        constexpr std::size_t kPiece = std::size_t{32} << 20;
        if (at >= given_back_ + kPiece) {
            file_.forget(given_back_, at - given_back_);
            given_back_ = at;
        }
    }

  private:
    const io::UnpackedFile& file_;
    std::size_t given_back_ = 0;
};

// stable_hash of the whole file, piece by piece: 64-bit FNV-1a.
std::uint64_t hash_of(const io::UnpackedFile& file) {
    constexpr std::uint64_t kOffset = 0xcbf29ce484222325;
    constexpr std::uint64_t kPrime = 0x100000001b3;
    ReadPages pages(file);
    std::uint64_t hash = kOffset;
    const std::string_view bytes = file.text();
    for (std::size_t begin = 0; begin < bytes.size(); begin += 1 << 20) {
        for (const char c : bytes.substr(begin, 1 << 20)) {
            hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
        }
        note_progress();
        pages.read_to(begin);
    }
    return hash;
}

// A list on a line is the messages of one row, or, if it is all there is in the file, a list of
// rows. Only rows have neither role nor type.
bool is_list_of_rows(std::string_view list) {
    const std::size_t first = skip_json_blanks(list, 1);
    const ValueEnd end = find_value_end(list, first);
    if (first >= list.size() || end.kind != ValueEnd::Kind::Whole) {
        return false;
    }
    if (list[first] == '[') {
        return true;
    }
    if (list[first] != '{') {
        return false;
    }
    try {
        const io::Json item = io::Json::parse(list.substr(first, end.end - first), "");
        return item.count("role") + item.count("from") + item.count("type") == 0;
    } catch (const Error&) {
        return false;
    }
}

RowLayout layout_of(std::string_view bytes, std::size_t first) {
    if (first == bytes.size() || (bytes[first] != '[' && bytes[first] != '{')) {
        return RowLayout::Lines;
    }
    const ValueEnd end = find_value_end(bytes, first);
    const std::size_t line_end = std::min(bytes.find('\n', first), bytes.size());
    const bool is_whole = end.kind == ValueEnd::Kind::Whole;
    if (is_whole && end.end <= line_end) {
        const bool is_all = skip_json_blanks(bytes, end.end) == bytes.size();
        const bool is_rows =
            bytes[first] == '[' && is_all && is_list_of_rows(bytes.substr(first, end.end - first));
        return is_rows ? RowLayout::Array : RowLayout::Lines;
    }
    if (bytes[first] == '[') {
        // Also one that was cut: then its first row, at least, is whole.
        const std::size_t item = skip_json_blanks(bytes, first + 1);
        const bool has_row =
            item < bytes.size() && find_value_end(bytes, item).kind == ValueEnd::Kind::Whole;
        return is_whole || has_row ? RowLayout::Array : RowLayout::Lines;
    }
    return is_whole ? RowLayout::Values : RowLayout::Lines;
}

[[noreturn]] void refuse_damaged(std::string_view bytes,
                                 std::size_t at,
                                 const std::string& path,
                                 std::string_view expected) {
    const std::string_view before = bytes.substr(0, at);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    throw Error(ErrorKind::Data,
                {.what = fmt::format(
                     "the file is JSON over several lines, and damaged: expected {}", expected),
                 .where = fmt::format("{}:{}", path, line),
                 .cause = {},
                 .hint = "Repair it there, or write one row a line"});
}

// Items of an array or values one after another, from `at` on. What was cut is the last row.
std::vector<std::int64_t> find_values(const io::UnpackedFile& file,
                                      std::size_t at,
                                      RowLayout layout,
                                      const std::string& path) {
    const std::string_view bytes = file.text();
    ReadPages pages(file);
    const bool is_array = layout == RowLayout::Array;
    std::vector<std::int64_t> offsets;
    at = skip_json_blanks(bytes, is_array ? at + 1 : at);
    if (is_array && at < bytes.size() && bytes[at] == ']') {
        return offsets;
    }
    while (at < bytes.size()) {
        note_progress();
        pages.read_to(at);
        offsets.push_back(static_cast<std::int64_t>(at));
        const ValueEnd end = find_value_end(bytes, at);
        if (end.kind == ValueEnd::Kind::Cut) {
            break;
        }
        if (end.kind == ValueEnd::Kind::Wrong) {
            refuse_damaged(
                bytes, end.end, path, "another character in row " + std::to_string(offsets.size()));
        }
        at = skip_json_blanks(bytes, end.end);
        if (!is_array || at == bytes.size()) {
            continue;
        }
        if (bytes[at] == ']') {
            at = skip_json_blanks(bytes, at + 1);
            if (at < bytes.size()) {
                refuse_damaged(bytes, at, path, "nothing after the end of the array");
            }
        } else if (bytes[at] == ',') {
            at = skip_json_blanks(bytes, at + 1);
        } else {
            refuse_damaged(bytes, at, path, "a comma or ]");
        }
    }
    return offsets;
}

struct Lines {
    std::vector<std::int64_t> offsets;
    std::vector<std::int64_t> blanks;
};

Lines find_lines(const io::UnpackedFile& file) {
    const std::string_view bytes = file.text();
    ReadPages pages(file);
    Lines lines;
    for (std::size_t at = 0; at < bytes.size();) {
        const std::size_t end = std::min(bytes.find('\n', at), bytes.size());
        if (io::strip_line(bytes.substr(at, end - at)).empty()) {
            lines.blanks.push_back(std::ssize(lines.offsets));
        } else {
            lines.offsets.push_back(static_cast<std::int64_t>(at));
        }
        note_progress();
        pages.read_to(at);
        at = end + 1;
    }
    return lines;
}

}  // namespace

RowIndex RowIndex::build(const io::UnpackedFile& file, const std::string& path) {
    const std::string_view bytes = file.text();
    RowIndex index;
    index.content_ = {.bytes = static_cast<std::int64_t>(bytes.size()), .hash = hash_of(file)};
    std::size_t first = bytes.starts_with("\xEF\xBB\xBF") ? 3 : 0;
    first = skip_json_blanks(bytes, first);
    index.layout_ = layout_of(bytes, first);
    std::size_t num_rows = 0;
    if (index.layout_ == RowLayout::Lines) {
        Lines lines = find_lines(file);
        num_rows = lines.offsets.size();
        index.numbers_ = std::move(lines.offsets);
        index.numbers_.insert(index.numbers_.end(), lines.blanks.begin(), lines.blanks.end());
    } else {
        index.numbers_ = find_values(file, first, index.layout_, path);
        num_rows = index.numbers_.size();
    }
    index.numbers_.shrink_to_fit();
    const std::span<const std::int64_t> numbers(index.numbers_);
    index.offsets_ = numbers.first(num_rows);
    index.blanks_ = numbers.subspan(num_rows);
    return index;
}

std::optional<RowIndex> RowIndex::load(const std::string& index_path, const FileStamp& stamp) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(index_path, ignored)) {
        return std::nullopt;
    }
    RowIndex index;
    index.mapped_.emplace(index_path);
    const std::span<const std::byte> bytes = index.mapped_->bytes();
    Header header;
    if (bytes.size() < sizeof(header)) {
        return std::nullopt;
    }
    std::memcpy(&header, bytes.data(), sizeof(header));
    const std::size_t num_numbers = (bytes.size() - sizeof(header)) / sizeof(std::int64_t);
    if (header.magic != kMagic ||
        FileStamp{.bytes = header.file_bytes, .modified_ns = header.modified_ns} != stamp ||
        header.layout < 0 || header.layout > static_cast<std::int64_t>(RowLayout::Values) ||
        header.num_rows < 0 || header.num_blanks < 0 ||
        static_cast<std::size_t>(header.num_rows) > num_numbers ||
        static_cast<std::size_t>(header.num_blanks) !=
            num_numbers - static_cast<std::size_t>(header.num_rows)) {
        return std::nullopt;
    }
    const std::span<const std::int64_t> numbers(
        reinterpret_cast<const std::int64_t*>(bytes.data() + sizeof(header)), num_numbers);
    index.offsets_ = numbers.first(static_cast<std::size_t>(header.num_rows));
    index.blanks_ = numbers.subspan(static_cast<std::size_t>(header.num_rows));
    if (hash_of(index.offsets_, index.blanks_) != header.numbers_hash) {
        return std::nullopt;
    }
    index.layout_ = static_cast<RowLayout>(header.layout);
    index.content_ = {.bytes = header.content_bytes, .hash = header.content_hash};
    return index;
}

void RowIndex::save(const std::string& index_path, const FileStamp& stamp) const {
    const Header header{.magic = kMagic,
                        .file_bytes = stamp.bytes,
                        .modified_ns = stamp.modified_ns,
                        .content_bytes = content_.bytes,
                        .content_hash = content_.hash,
                        .layout = static_cast<std::int64_t>(layout_),
                        .num_rows = std::ssize(offsets_),
                        .num_blanks = std::ssize(blanks_),
                        .numbers_hash = hash_of(offsets_, blanks_)};
    io::create_folders(std::filesystem::path(index_path).parent_path().string());
    io::AtomicFile file(index_path);
    file.write(std::as_bytes(std::span(&header, 1)));
    file.write(std::as_bytes(offsets_));
    file.write(std::as_bytes(blanks_));
    file.commit();
}

}  // namespace dflash::data
