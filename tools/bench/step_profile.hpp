// SPDX-License-Identifier: Apache-2.0
// Where the time of GPU work goes, as CUPTI records it through LibTorch's profiler: the start and
// the end of every kernel, copy and memset of the process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace dflash::bench {

/// Kernels of one name.
struct KernelTime {
    std::string name;
    std::string part;  ///< "GEMM", "attention", "loss", "norms, rotation, activation", ...
    std::int64_t count = 0;
    double ms = 0;
};

struct PartTime {
    std::string part;
    double ms = 0;
};

struct Profile {
    double span_ms = 0;               ///< from the first start to the last end
    double busy_ms = 0;               ///< of it, with at least one kernel running
    std::vector<PartTime> parts;      ///< longest first; their sum is busy_ms on a single stream
    std::vector<KernelTime> kernels;  ///< longest first
};

/// Runs `work`, which must wait for its stream before it returns. Nothing in the result where no
/// GPU was at work.
Profile profile(const std::function<void()>& work);

}  // namespace dflash::bench
