// SPDX-License-Identifier: Apache-2.0
#include "tiny_kernel.hpp"

#include <dflash/core/error.hpp>
#include <dflash/kernels/kernel_spec.hpp>

#include <doctest/doctest.h>
#include <vector>

namespace dflash::kernels {
namespace {

TEST_SUITE("kernels.kernel_spec") {
    TEST_CASE("id: entry and constants in their order") {
        const KernelSpec spec{
            .source = "a.cu", .entry = "attend", .constants = {{"D", 128}, {"SHIFT", -1}}};
        CHECK(spec.id() == "attend[D=128,SHIFT=-1]");
        CHECK(KernelSpec{.source = "a.cu", .entry = "attend"}.id() == "attend[]");
    }

    TEST_CASE("merge: each kernel once, in the order of first mention") {
        const std::vector<KernelSpec> merged =
            merge_kernels({{tiny_kernel(2), tiny_kernel(1)}, {}, {tiny_kernel(1), tiny_kernel(3)}});
        CHECK(merged == std::vector<KernelSpec>{tiny_kernel(2), tiny_kernel(1), tiny_kernel(3)});
    }

    TEST_CASE("merge: two kernels of one id that differ are a bug") {
        KernelSpec other = tiny_kernel(1);
        other.dynamic_shared_bytes = 64;
        CHECK_THROWS_AS(merge_kernels({{tiny_kernel(1)}, {other}}), Error);
    }
}

}  // namespace
}  // namespace dflash::kernels
