// SPDX-License-Identifier: Apache-2.0
// A kernel that compiles in a few milliseconds, for tests of what is around kernels.
#pragma once

#include <dflash/kernels/architecture.hpp>
#include <dflash/kernels/device_source.hpp>
#include <dflash/kernels/kernel_spec.hpp>

#include <cstdint>
#include <vector>

namespace dflash::kernels {

/// out[i] = VALUE, and what it includes.
inline SourceSet tiny_sources() {
    SourceSet sources;
    sources.set(
        "tiny.cu",
        "#include \"tiny_value.cuh\"\n"
        "extern \"C\" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)\n"
        "tiny(int* out) {\n"
        "    out[blockIdx.x * DFLASH_THREADS + threadIdx.x] = tiny_value();\n"
        "}\n");
    sources.set("tiny_value.cuh",
                "#pragma once\n"
                "__device__ inline int tiny_value() { return VALUE; }\n");
    return sources;
}

inline KernelSpec tiny_kernel(std::int64_t value) {
    return {.source = "tiny.cu", .entry = "tiny", .constants = {{"VALUE", value}}, .threads = 32};
}

inline std::vector<KernelSpec> tiny_kernels(int count) {
    std::vector<KernelSpec> kernels;
    for (int i = 0; i < count; ++i) {
        kernels.push_back(tiny_kernel(i));
    }
    return kernels;
}

inline const Architecture kTestArchitecture = Architecture::parse("sm_90a");

}  // namespace dflash::kernels
