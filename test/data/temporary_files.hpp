// SPDX-License-Identifier: Apache-2.0
// Files of a test in a folder of its own, removed at the end.
#pragma once

#include <atomic>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <string>
#include <string_view>
#include <unistd.h>

namespace dflash::data::testing {

class TemporaryFiles {
  public:
    TemporaryFiles() {
        static std::atomic<int> number = 0;
        folder_ = std::filesystem::temp_directory_path() /
                  fmt::format("dflash-data-test-{}-{}", ::getpid(), number++);
        std::filesystem::create_directories(folder_);
    }

    TemporaryFiles(const TemporaryFiles&) = delete;
    TemporaryFiles& operator=(const TemporaryFiles&) = delete;

    ~TemporaryFiles() {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }

    /// Writes a file and returns its path.
    std::string write(const std::string& name, std::string_view bytes) const {
        const std::filesystem::path path = folder_ / name;
        std::ofstream(path, std::ios::binary) << bytes;
        return path.string();
    }

    std::string folder() const { return folder_.string(); }

  private:
    std::filesystem::path folder_;
};

}  // namespace dflash::data::testing
