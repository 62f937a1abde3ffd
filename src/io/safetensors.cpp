// SPDX-License-Identifier: Apache-2.0
// Reading of safetensors files. Format: https://github.com/huggingface/safetensors, "Format".
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/json.hpp>
#include <dflash/io/mapped_file.hpp>
#include <dflash/io/safetensors.hpp>

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <optional>
#include <unordered_map>
#include <utility>

namespace dflash::io {
namespace {

/// What the reference implementation allows for a header.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kLengthBytes = 8;

struct DTypeInfo {
    DType dtype;
    std::string_view name;
    Bytes size;
};

/// The types of the format that models use; others are refused by name.
constexpr std::array<DTypeInfo, 11> kDTypes = {{
    {DType::Bool, "BOOL", 1},
    {DType::U8, "U8", 1},
    {DType::I8, "I8", 1},
    {DType::I16, "I16", 2},
    {DType::I32, "I32", 4},
    {DType::I64, "I64", 8},
    {DType::F8E4M3, "F8_E4M3", 1},
    {DType::F16, "F16", 2},
    {DType::BF16, "BF16", 2},
    {DType::F32, "F32", 4},
    {DType::F64, "F64", 8},
}};

const DTypeInfo& info_of(DType dtype) {
    return *std::find_if(
        kDTypes.begin(), kDTypes.end(), [&](const DTypeInfo& i) { return i.dtype == dtype; });
}

std::optional<DType> dtype_of(std::string_view name) {
    const auto found = std::find_if(
        kDTypes.begin(), kDTypes.end(), [&](const DTypeInfo& i) { return i.name == name; });
    return found == kDTypes.end() ? std::nullopt : std::optional(found->dtype);
}

/// Checks the header of one file against its size, entry by entry.
class HeaderReader {
  public:
    HeaderReader(const std::string& path, std::span<const std::byte> file)
        : path_(path), file_(file) {}

    /// Fills in tensors (in the order of their offsets) and metadata.
    void read(std::vector<TensorView>& tensors, std::map<std::string, std::string>& metadata) {
        const std::string_view text = header_text();
        const Json header = parse(text);
        data_ = file_.subspan(kLengthBytes + text.size());
        std::unordered_map<std::string_view, int> seen;
        for (const auto& [name, entry] : header.members()) {
            if (++seen[name] > 1) {
                fail(fmt::format("{} stands twice in the header", quote(name)));
            }
            if (name == "__metadata__") {
                read_metadata(entry, metadata);
            } else {
                tensors.push_back(read_entry(name, entry));
            }
        }
        // By begin, then by size: tensors without bytes come before the one that begins there.
        std::stable_sort(
            tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
                return std::pair(a.data.data(), a.data.size()) <
                       std::pair(b.data.data(), b.data.size());
            });
        check_coverage(tensors);
    }

  private:
    [[noreturn]] void fail(std::string what) const {
        throw Error(ErrorKind::Data,
                    {.what = std::move(what),
                     .where = path_,
                     .cause = {},
                     .hint = "The file is damaged or cut short: download or copy it again"});
    }

    [[noreturn]] void fail_entry(std::string_view name,
                                 std::string_view field,
                                 std::string_view got,
                                 std::string_view expected) const {
        fail(fmt::format("{}: {}: got {}, expected {}", quote(name), field, got, expected));
    }

    /// The header, after its length has been checked against the file.
    std::string_view header_text() const {
        if (file_.size() < kLengthBytes) {
            fail(fmt::format("no safetensors file: got {} bytes, expected at least 8",
                             file_.size()));
        }
        std::uint64_t length = 0;
        for (std::size_t i = kLengthBytes; i-- > 0;) {
            length = length << 8 | std::to_integer<std::uint64_t>(file_[i]);
        }
        const std::uint64_t available = file_.size() - kLengthBytes;
        if (length > available) {
            fail(fmt::format("the header is {} bytes long, the file has {} after the length",
                             length,
                             available));
        }
        if (length > kMaxHeaderBytes) {
            fail(fmt::format(
                "the header is {} bytes long, expected at most {}", length, kMaxHeaderBytes));
        }
        return {reinterpret_cast<const char*>(file_.data()) + kLengthBytes,
                static_cast<std::size_t>(length)};
    }

    /// The reference implementation refuses blanks before the object, so its files have none.
    Json parse(std::string_view text) const {
        if (!text.starts_with('{')) {
            fail(fmt::format("the header begins with {}, expected \"{{\"",
                             text.empty() ? "nothing" : quote(text.substr(0, 1))));
        }
        return Json::parse(text, path_ + ", header");
    }

    void read_metadata(const Json& entry, std::map<std::string, std::string>& metadata) const {
        if (!entry.is_object()) {
            fail_entry("__metadata__", "value", entry.kind_name(), "an object of texts");
        }
        for (const auto& [key, value] : entry.members()) {
            if (!value.is_string()) {
                fail_entry("__metadata__", quote(key), value.kind_name(), "text");
            }
            if (!metadata.emplace(key, value.as_string()).second) {
                fail(fmt::format("{} stands twice in __metadata__", quote(key)));
            }
        }
    }

    TensorView read_entry(const std::string& name, const Json& entry) const {
        if (!entry.is_object()) {
            fail_entry(name, "entry", entry.kind_name(), "an object");
        }
        for (const auto& [key, value] : entry.members()) {
            if (key != "dtype" && key != "shape" && key != "data_offsets") {
                fail_entry(name, "entry", quote(key), "dtype, shape and data_offsets");
            }
            if (entry.count(key) > 1) {
                fail(fmt::format("{}: {} stands twice", quote(name), key));
            }
        }
        TensorView tensor;
        tensor.name = name;
        tensor.dtype = read_dtype(name, entry.find("dtype"));
        tensor.shape = read_integers(name, "shape", entry.find("shape"));
        const Bytes expected = byte_count(tensor);
        tensor.data = read_data(name, entry.find("data_offsets"));
        // Only now: numel() of a checked shape, against bytes that lie in the file.
        if (tensor.data.size() != static_cast<std::uint64_t>(expected)) {
            fail_entry(name,
                       "data_offsets",
                       fmt::format("{} bytes", tensor.data.size()),
                       fmt::format("{} for {}", expected, describe(tensor)));
        }
        return tensor;
    }

    DType read_dtype(std::string_view name, const Json* value) const {
        std::vector<std::string_view> names;
        names.reserve(kDTypes.size());
        for (const DTypeInfo& info : kDTypes) {
            names.push_back(info.name);
        }
        const std::string expected = fmt::format("one of {}", fmt::join(names, ", "));
        if (value == nullptr || !value->is_string()) {
            fail_entry(name, "dtype", value == nullptr ? "nothing" : value->kind_name(), expected);
        }
        const auto dtype = dtype_of(value->as_string());
        if (!dtype) {
            fail_entry(name, "dtype", quote(value->as_string()), expected);
        }
        return *dtype;
    }

    /// A list of integers of 0 or more.
    std::vector<std::int64_t> read_integers(std::string_view name,
                                            std::string_view field,
                                            const Json* value) const {
        constexpr std::string_view kExpected = "a list of integers of 0 or more";
        if (value == nullptr || !value->is_array()) {
            fail_entry(name, field, value == nullptr ? "nothing" : value->kind_name(), kExpected);
        }
        std::vector<std::int64_t> integers;
        for (const Json& item : value->items()) {
            const auto integer = item.is_number() ? item.to_integer() : std::nullopt;
            if (!integer || *integer < 0) {
                fail_entry(name, field, quote(item.dump(), 60), kExpected);
            }
            integers.push_back(*integer);
        }
        return integers;
    }

    /// dtype x shape. Every partial product must fit, so that TensorView::numel() cannot overflow.
    Bytes byte_count(const TensorView& tensor) const {
        std::int64_t count = 1;
        Bytes bytes = 0;
        bool overflow = false;
        for (const std::int64_t extent : tensor.shape) {
            overflow = overflow || __builtin_mul_overflow(count, extent, &count);
        }
        if (overflow || __builtin_mul_overflow(count, size_of(tensor.dtype), &bytes)) {
            fail_entry(tensor.name, "shape", describe(tensor), "a size below 2^63 bytes");
        }
        return bytes;
    }

    std::span<const std::byte> read_data(std::string_view name, const Json* value) const {
        const std::vector<std::int64_t> offsets = read_integers(name, "data_offsets", value);
        if (offsets.size() != 2) {
            fail_entry(name, "data_offsets", quote(value->dump(), 60), "[begin, end]");
        }
        const auto begin = static_cast<std::uint64_t>(offsets[0]);
        const auto end = static_cast<std::uint64_t>(offsets[1]);
        if (begin > end || end > data_.size()) {
            fail_entry(
                name,
                "data_offsets",
                value->dump(),
                fmt::format("begin <= end <= {}, the bytes of data in the file", data_.size()));
        }
        return data_.subspan(begin, end - begin);
    }

    /// Sorted tensors must cover the data without overlap, hole or rest: otherwise bytes of one are
    /// read as another's, or something lies hidden in the file.
    void check_coverage(const std::vector<TensorView>& tensors) const {
        const std::byte* covered = data_.data();
        const TensorView* previous = nullptr;
        for (const TensorView& tensor : tensors) {
            const std::string after = previous == nullptr ? "the header" : quote(previous->name);
            if (tensor.data.data() < covered) {
                fail(fmt::format("{} overlaps {}", quote(tensor.name), after));
            }
            if (tensor.data.data() > covered) {
                fail(fmt::format("{} bytes between {} and {} belong to no tensor",
                                 tensor.data.data() - covered,
                                 after,
                                 quote(tensor.name)));
            }
            covered += tensor.data.size();
            previous = &tensor;
        }
        const auto rest = data_.data() + data_.size() - covered;
        if (rest != 0) {
            fail(fmt::format("{} bytes after the last tensor belong to no tensor", rest));
        }
    }

    const std::string& path_;
    std::span<const std::byte> file_;
    std::span<const std::byte> data_;
};

}  // namespace

std::string_view to_string(DType dtype) {
    return info_of(dtype).name;
}

Bytes size_of(DType dtype) {
    return info_of(dtype).size;
}

std::int64_t TensorView::numel() const {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) {
        count *= extent;
    }
    return count;
}

std::string describe(const TensorView& tensor) {
    return fmt::format("[{}] {}", fmt::join(tensor.shape, ", "), to_string(tensor.dtype));
}

/// On the heap, so that views and keys keep their addresses when the file is moved.
struct SafetensorsFile::Content {
    // A folder or a pipe where weights should be is no fault of the disk.
    explicit Content(const std::string& path) : file(path, ErrorKind::Storage, ErrorKind::Data) {
        HeaderReader(file.path(), file.bytes()).read(tensors, metadata);
        for (const TensorView& tensor : tensors) {
            by_name.emplace(tensor.name, &tensor);
        }
    }

    MappedFile file;
    std::vector<TensorView> tensors;
    std::map<std::string, std::string> metadata;
    std::unordered_map<std::string_view, const TensorView*> by_name;
};

SafetensorsFile::SafetensorsFile(const std::string& path)
    : content_(std::make_unique<Content>(path)) {}

SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

const std::string& SafetensorsFile::path() const {
    return content_->file.path();
}

const std::vector<TensorView>& SafetensorsFile::tensors() const {
    return content_->tensors;
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
    return content_->metadata;
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
    const auto found = content_->by_name.find(name);
    return found == content_->by_name.end() ? nullptr : found->second;
}

const TensorView& SafetensorsFile::at(std::string_view name) const {
    if (const TensorView* tensor = find(name)) {
        return *tensor;
    }
    std::vector<std::string> names;
    names.reserve(tensors().size());
    for (const TensorView& tensor : tensors()) {
        names.push_back(tensor.name);
    }
    std::vector<std::string> near;  // the nearest first
    while (near.size() < 3) {
        const auto nearest = nearest_name(name, names);
        if (!nearest) {
            break;
        }
        near.push_back(quote(*nearest));
        std::erase(names, *nearest);
    }
    throw Error(
        ErrorKind::Data,
        {.what = fmt::format("no tensor {} among {}", quote(name), tensors().size()),
         .where = path(),
         .cause = {},
         .hint = near.empty() ? std::string()
                              : fmt::format("The nearest names are {}", fmt::join(near, ", "))});
}

}  // namespace dflash::io
