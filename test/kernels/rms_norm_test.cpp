// SPDX-License-Identifier: Apache-2.0
#include "rms_norm_variants.hpp"

#include <dflash/core/error.hpp>
#include <dflash/kernels/rms_norm.hpp>

#include <doctest/doctest.h>
#include <set>
#include <string>

namespace dflash::kernels {
namespace {

constexpr Element kFp32 = Element::Float32;

std::int64_t constant(const KernelSpec& spec, const std::string& name) {
    for (const auto& [key, value] : spec.constants) {
        if (key == name) {
            return value;
        }
    }
    FAIL("no constant " << name);
    return 0;
}

TEST_SUITE("kernels.rms_norm") {
    TEST_CASE("every row size is spread over a block that has room for it") {
        for (std::int64_t hidden = 64; hidden <= 8192; hidden += 8) {
            CAPTURE(hidden);
            for (const KernelSpec& spec : rms_norm_variants(hidden)) {
                const std::int64_t lanes = 32 * constant(spec, "WARPS");
                const std::int64_t vectors = hidden / constant(spec, "VECTOR");
                const std::int64_t of_lane = (vectors + lanes - 1) / lanes;
                const bool forward = spec.entry == "rms_norm_forward";
                REQUIRE(of_lane * constant(spec, "VECTOR") <= (forward         ? 32
                                                               : hidden > 6144 ? 16
                                                                               : 8));
                REQUIRE(spec.threads % lanes == 0);
                REQUIRE(spec.threads <= 768);
                // Several rows at a time only where each has a single warp.
                REQUIRE((lanes == 32 || spec.threads == lanes));
            }
        }
    }

    TEST_CASE("row sizes outside 64 to 8192 and odd ones are refused") {
        for (const std::int64_t hidden : {0, 8, 56, 68, 100, 8200, 16384}) {
            CAPTURE(hidden);
            CHECK_THROWS_AS(rms_norm_forward_kernel({.hidden = hidden}), Error);
            CHECK_THROWS_AS(rms_norm_backward_kernel({.hidden = hidden}), Error);
        }
        CHECK_THROWS_AS(
            rms_norm_forward_kernel({.hidden = 64, .x = kFp32, .add_to_residual = true}), Error);
    }

    TEST_CASE("the kernels of drafter and target have different names unless they are equal") {
        std::vector<std::vector<KernelSpec>> lists;
        for (const std::int64_t hidden : {576, 4096, 5120}) {
            lists.push_back(drafter_rms_norm_kernels(hidden));
            lists.push_back(target_rms_norm_kernels(hidden));
        }
        std::set<std::string> names;
        for (const KernelSpec& spec : merge_kernels(lists)) {
            CHECK(names.insert(spec.id()).second);
        }
        CHECK(names.size() == 3 * 6 + 1);
    }
}

}  // namespace
}  // namespace dflash::kernels
