// SPDX-License-Identifier: Apache-2.0
// GPU architectures as NVRTC's targets name them.
//
// A cubin for sm_XY runs on compute capability X.Z with Z >= Y; one for sm_XYa, which may use the
// instructions of that chip alone, runs on X.Y only (CUDA C++ programming guide, "binary
// compatibility" and "architecture-specific features").
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::kernels {

/// A target of the compiler. Smallest compute capability: 8.0.
struct Architecture {
    int major = 0;
    int minor = 0;
    bool exact = false;  ///< with the suffix "a"

    /// Reads "sm_80", "sm_90a", "sm_120a". Throws Error{Config} for anything else.
    static Architecture parse(std::string_view name);

    /// The target for a GPU of this compute capability: sm_XYa from 9.0 on, where such targets
    /// begin. Throws KernelError{WrongArchitecture} below 8.0.
    static Architecture of_capability(int major, int minor);

    std::string name() const;  ///< "sm_90a"

    int number() const { return 10 * major + minor; }

    /// Whether a cubin for this target runs on a GPU of that compute capability.
    bool runs_on(int gpu_major, int gpu_minor) const;

    /// Most shared memory of a block, static and dynamic together, in bytes, on the GPU that this
    /// is the own target of (CUDA C++ programming guide, table of technical specifications).
    int max_shared_bytes() const;

    friend auto operator<=>(const Architecture&, const Architecture&) = default;
};

/// Reads a list, "sm_80,sm_90a". Throws Error{Config}, also for an empty list.
std::vector<Architecture> parse_architectures(std::string_view list);

/// What packs are built for unless told otherwise: A100, RTX 30, RTX 40/L40, H100/H200, B200,
/// RTX 50/PRO 6000 Blackwell.
std::vector<Architecture> standard_architectures();

}  // namespace dflash::kernels
