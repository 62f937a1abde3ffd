// SPDX-License-Identifier: Apache-2.0
// Reading files ahead of those who need them.
#pragma once

#include <dflash/core/scope.hpp>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace dflash::io {

/// Reads files into the system's cache from a thread of its own, in their order, so that whoever
/// maps or reads them next finds them there. Does nothing if they would not fit into the memory
/// that is free; a file that cannot be read is left to its reader, who will say so.
class PageWarmer : NonCopyable {
  public:
    explicit PageWarmer(std::vector<std::string> paths);

    /// Stops reading.
    ~PageWarmer() = default;

    /// Waits until everything is read.
    void wait();

  private:
    std::jthread thread_;
};

/// Memory that could be had without swapping, as /proc/meminfo says; 0 if it does not.
std::int64_t available_memory();

}  // namespace dflash::io
