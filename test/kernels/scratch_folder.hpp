// SPDX-License-Identifier: Apache-2.0
// A folder that lasts as long as a test.
#pragma once

#include <dflash/core/scope.hpp>

#include <atomic>
#include <filesystem>
#include <string>
#include <system_error>
#include <unistd.h>

namespace dflash::kernels {

class ScratchFolder : NonCopyable {
  public:
    ScratchFolder() {
        static std::atomic<int> counter = 0;
        path_ = std::filesystem::temp_directory_path() /
                ("dflash-kernels-" + std::to_string(::getpid()) + "-" + std::to_string(counter++));
        std::filesystem::remove_all(path_);
        std::filesystem::create_directories(path_);
    }

    ~ScratchFolder() {
        std::error_code error;
        std::filesystem::remove_all(path_, error);
    }

    std::string path() const { return path_.string(); }

    std::string operator/(const std::string& name) const { return (path_ / name).string(); }

  private:
    std::filesystem::path path_;
};

}  // namespace dflash::kernels
