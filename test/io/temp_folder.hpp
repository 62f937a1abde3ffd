// SPDX-License-Identifier: Apache-2.0
// A folder that lives as long as a test.
#pragma once

#include <dflash/core/scope.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

namespace dflash::test {

/// Makes an empty folder under the system's folder for temporary files, and removes it in the end.
class TempFolder : NonCopyable {
  public:
    TempFolder() {
        std::string pattern =
            (std::filesystem::temp_directory_path() / "dflash-test-XXXXXX").string();
        REQUIRE(::mkdtemp(pattern.data()) != nullptr);
        path_ = pattern;
    }

    ~TempFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }

    /// Path of a file of this folder.
    std::string operator/(std::string_view name) const {
        return (std::filesystem::path(path_) / name).string();
    }

    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

inline void write_text(const std::string& path, std::string_view text) {
    // A new file: ext4 writes to disk at once when a file is emptied and written again.
    std::filesystem::remove(path);
    std::ofstream file(path, std::ios::binary);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    REQUIRE(file.good());
}

inline std::string read_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    REQUIRE(file.good());
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Names of the entries of a folder, sorted.
inline std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
}

}  // namespace dflash::test
