// SPDX-License-Identifier: Apache-2.0
// A lock between processes, on one number of a file.
#pragma once

#include <dflash/core/scope.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace dflash::kernels {

/// Held from acquire() until it is destroyed or the process ends. Also excludes other threads of
/// this process.
class FileLock : NonCopyable {
  public:
    /// Creates the file if necessary and locks `number` in it; waits at most `timeout_s` for who
    /// holds it. Null if that is not possible, for whatever reason. `number` must not be negative.
    static std::shared_ptr<FileLock> acquire(const std::string& path,
                                             std::int64_t number,
                                             double timeout_s);

    explicit FileLock(int descriptor) : descriptor_(descriptor) {}

    ~FileLock();

  private:
    int descriptor_;
};

}  // namespace dflash::kernels
