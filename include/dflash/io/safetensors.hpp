// SPDX-License-Identifier: Apache-2.0
// The safetensors format: u64 little-endian length of a JSON header, the header, raw data. The
// reader trusts nothing: every length, offset, type and shape is checked against the file before it
// is used.
#pragma once

#include <dflash/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::io {

enum class DType { Bool, U8, I8, I16, I32, I64, F8E4M3, F16, BF16, F32, F64 };

/// Name in the file format: "BF16".
std::string_view to_string(DType dtype);
Bytes size_of(DType dtype);

/// One tensor of a file: a view into the mapping, valid while the SafetensorsFile lives.
struct TensorView {
    std::string name;
    DType dtype = DType::F32;
    std::vector<std::int64_t> shape;
    std::span<const std::byte> data;

    std::int64_t numel() const;
};

/// "[4096, 1024] BF16"
std::string describe(const TensorView& tensor);

class MappedFile;

/// A mapped, checked file. Move-only; reading is thread-safe.
class SafetensorsFile {
  public:
    /// Maps and checks a file. Throws Error{Data} for a malformed one (header beyond the file,
    /// overlapping or out-of-range offsets, holes, dtype x shape != bytes, duplicate or unknown
    /// entries) with path, tensor, got and expected; Error{Storage} if it cannot be read.
    explicit SafetensorsFile(const std::string& path);
    SafetensorsFile(SafetensorsFile&&) noexcept;
    SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
    ~SafetensorsFile();

    const std::string& path() const;
    const std::vector<TensorView>& tensors() const;  ///< in the order of their offsets
    const TensorView* find(std::string_view name) const;

    /// The tensor; Error{Data} with the nearest names if it is not there.
    const TensorView& at(std::string_view name) const;
    const std::map<std::string, std::string>& metadata() const;

  private:
    struct Content;
    std::unique_ptr<Content> content_;
};

/// The tensors of a model folder: model.safetensors, or the shards of model.safetensors.index.json.
/// A name is resolved through the index; total_size is checked.
class SafetensorsFolder {
  public:
    /// Throws Error{Config} if the folder has neither file, Error{Data} if shard and index
    /// disagree.
    explicit SafetensorsFolder(const std::string& folder);

    const TensorView* find(std::string_view name) const;
    std::vector<std::string> names() const;  ///< sorted

    const std::string& folder() const { return folder_; }

    /// The file that holds a tensor, for messages.
    std::string file_of(std::string_view name) const;

  private:
    std::string folder_;
    std::vector<SafetensorsFile> files_;
    std::map<std::string, std::size_t, std::less<>> file_index_;  // tensor name -> index in files_
};

/// What a writer needs of one tensor: `write` is called once, in order, and must hand exactly the
/// announced bytes to the sink, in pieces of any size.
struct TensorSource {
    std::string name;
    DType dtype = DType::F32;
    std::vector<std::int64_t> shape;
    std::function<void(const std::function<void(std::span<const std::byte>)>& sink)> write;
};

/// Writes a file at `path` (fsync, no rename: the caller renames the folder, or see AtomicFile) and
/// returns the XXH64 of its bytes in hexadecimal. Synchronises every 256 MiB, so that no call of it
/// takes long and a large file does not fill the system's memory. Throws Error{Storage}.
std::string write_safetensors(const std::string& path,
                              const std::vector<TensorSource>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

}  // namespace dflash::io
