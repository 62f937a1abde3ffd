// SPDX-License-Identifier: Apache-2.0
// What names one kernel: a device source file, its entry point and the constants that make an
// instance of it. Everything that is compiled, cached, loaded and launched is one of these.
//
// To the device source the constants arrive as macros (-DNAME=VALUE), together with
//     DFLASH_THREADS               KernelSpec::threads
//     DFLASH_MIN_BLOCKS            KernelSpec::min_blocks_per_sm
//     DFLASH_DYNAMIC_SHARED_BYTES  KernelSpec::dynamic_shared_bytes
// so that an entry point reads
//     extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS) name(...)
// Sources include each other by file name, #include "name.cuh"; there are no other headers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dflash::kernels {

/// A spill of registers to local memory that is accepted, on one architecture. A spill that is not
/// listed is an error.
struct SpillAllowance {
    std::string architecture;  ///< "sm_120a"
    int max_bytes = 0;         ///< of spill stores, as ptxas reports them
    std::string reason;        ///< why it does no harm; never empty

    bool operator==(const SpillAllowance&) const = default;
};

/// One instance of a kernel. Sizes that change from row to row (tokens, anchors, strides) are
/// arguments of the launch and never constants, or each of them would compile again.
struct KernelSpec {
    std::string source;  ///< file name in src/kernels/cuda: "attention_forward.cu"
    std::string entry;   ///< name of the extern "C" __global__ function

    /// Macros of the instance, in an order that is always the same for one entry.
    std::vector<std::pair<std::string, std::int64_t>> constants{};

    int threads = 0;               ///< per block, exactly
    int dynamic_shared_bytes = 0;  ///< per block, given at each launch
    int min_blocks_per_sm = 1;     ///< for __launch_bounds__: bounds the registers

    std::vector<SpillAllowance> allowed_spills{};

    bool operator==(const KernelSpec&) const = default;

    /// "attention_forward[D=128,G=4,B=16]": unique among the kernels of a program.
    std::string id() const;
};

/// The union of several lists, each kernel once, in the order of first mention. Kernels with one id
/// that are not equal are an internal error.
std::vector<KernelSpec> merge_kernels(const std::vector<std::vector<KernelSpec>>& lists);

}  // namespace dflash::kernels
