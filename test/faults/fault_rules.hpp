// SPDX-License-Identifier: Apache-2.0
// Rules for the faulty disk (see faulty_disk.cpp), for this process or for those that it starts.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

namespace dflash::test {

/// While it lives the disk obeys its rules; none at first. One at a time.
class FaultRules {
  public:
    FaultRules()
        : path_((std::filesystem::temp_directory_path() /
                 ("dflash-faults-" + std::to_string(::getpid())))
                    .string()) {
        set("");
        ::setenv("DFLASH_TEST_DISK", path_.c_str(), 1);
    }

    ~FaultRules() {
        ::unsetenv("DFLASH_TEST_DISK");
        std::filesystem::remove(path_);
        std::filesystem::remove(path_ + ".count");
    }

    FaultRules(const FaultRules&) = delete;
    FaultRules& operator=(const FaultRules&) = delete;

    /// Replaces all rules, at once.
    void set(const std::string& rules) const {
        const std::string temporary = path_ + ".new";
        std::ofstream(temporary) << rules << '\n';
        std::filesystem::rename(temporary, path_);
    }

    /// Calls that matched the first rule since it was set.
    std::int64_t count() const {
        std::int64_t count = 0;
        std::ifstream(path_ + ".count") >> count;
        return count;
    }

    /// For rules of paths: the file of rules lies elsewhere.
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

}  // namespace dflash::test
