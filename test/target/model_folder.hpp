// SPDX-License-Identifier: Apache-2.0
// Model folders for tests: copies of a reference target with something changed.
#pragma once

#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/io/safetensors.hpp>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dflash::target::testing {

/// A folder of its own below the system's one for temporary files, removed at the end.
class TempFolder : NonCopyable {
  public:
    TempFolder();
    ~TempFolder();

    const std::filesystem::path& path() const { return path_; }

    std::string string() const { return path_.string(); }

    void write(const std::string& name, const std::string& text) const;

  private:
    std::filesystem::path path_;
};

std::string read_text(const std::filesystem::path& path);

/// `text` with the only occurrence of `from` replaced; fails the test if there is not exactly one.
std::string replaced(std::string text, const std::string& from, const std::string& to);

/// A tensor that owns its bytes, for writing changed checkpoints.
struct OwnedTensor {
    std::string name;
    io::DType dtype = io::DType::F32;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> data;
};

std::vector<OwnedTensor> read_tensors(const std::string& safetensors);
void write_tensors(const std::string& safetensors, const std::vector<OwnedTensor>& tensors);
OwnedTensor& tensor_named(std::vector<OwnedTensor>& tensors, const std::string& name);

/// test/golden/targets/T3 (one weight file) copied to `folder`, after `change` on its tensors.
void copy_target(const std::string& source,
                 const std::string& folder,
                 const std::function<void(std::vector<OwnedTensor>&)>& change);

/// The Error that a function throws; nothing if it throws none.
std::optional<Error> error_of(const std::function<void()>& action);

/// Collects log lines while it lives.
class LogCapture : NonCopyable {
  public:
    LogCapture();
    ~LogCapture();

    const std::string& text() const { return text_; }

  private:
    std::string text_;
    LogSink former_;
};

}  // namespace dflash::target::testing
