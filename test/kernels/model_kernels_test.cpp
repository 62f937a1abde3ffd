// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/kernels/cross_entropy.hpp>
#include <dflash/kernels/model_kernels.hpp>
#include <dflash/kernels/quantize_rows.hpp>

#include <algorithm>
#include <cstdint>
#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace dflash::kernels {

TEST_SUITE("kernels.model_kernels") {
    TEST_CASE("model kernels: sizes that there are none for are refused by name") {
        const ShippedDrafter shipped = shipped_drafters().at(1);
        const auto refusal = [](const auto& shape) -> std::string {
            try {
                check_shape(shape);
                return "";
            } catch (const Error& error) {
                CHECK(error.kind() == ErrorKind::Config);
                return error.parts().what;
            }
        };
        CHECK(refusal(shipped.drafter).empty());
        CHECK(refusal(shipped.target).empty());

        struct Wrong {
            std::int64_t DrafterKernelShape::*of_drafter;
            std::int64_t TargetKernelShape::*of_target;
            std::int64_t value;
            std::string what;
        };

        for (const Wrong& w :
             std::vector<Wrong>{{&DrafterKernelShape::head_dim,
                                 &TargetKernelShape::head_dim,
                                 80,
                                 "head_dim: got 80, expected 32, 64, 128 or 256"},
                                {&DrafterKernelShape::hidden_size,
                                 &TargetKernelShape::hidden_size,
                                 8320,
                                 "hidden_size: got 8320, expected a multiple of 8 from 64 to 8192"},
                                {&DrafterKernelShape::intermediate_size,
                                 &TargetKernelShape::intermediate_size,
                                 1001,
                                 "intermediate_size: got 1001, expected a multiple of 8"}}) {
            CAPTURE(w.what);
            DrafterKernelShape drafter = shipped.drafter;
            drafter.*w.of_drafter = w.value;
            CHECK(refusal(drafter) == "draft." + w.what);
            TargetKernelShape target = shipped.target;
            target.*w.of_target = w.value;
            CHECK(refusal(target) == "the target's " + w.what);
            CHECK_THROWS_AS(target_kernels(target), Error);
            CHECK_THROWS_AS(drafter_kernels(drafter, Architecture::parse("sm_90a")), Error);
        }
        DrafterKernelShape drafter = shipped.drafter;
        drafter.num_kv_heads = 2;
        CHECK(refusal(drafter) ==
              "draft.num_heads: got 32, expected 1 to 8 times draft.num_kv_heads, which is 2");
        drafter = shipped.drafter;
        drafter.float8_logits = true;
        for (const char* const name : {"sm_80", "sm_86"}) {
            CHECK_THROWS_WITH_AS(drafter_kernels(drafter, Architecture::parse(name)),
                                 doctest::Contains("draft.head_precision: got a head in fp8"),
                                 Error);
        }
        drafter = shipped.drafter;
        drafter.block_size = 33;
        CHECK(refusal(drafter) == "draft.block_size: got 33, expected 2 to 32");
    }

    TEST_CASE("model kernels: those of a head in fp8 are there where the architecture has it") {
        const auto has = [](const std::vector<KernelSpec>& kernels, const KernelSpec& kernel) {
            return std::find(kernels.begin(), kernels.end(), kernel) != kernels.end();
        };
        const KernelSpec gradient = cross_entropy_kernel(Element::Float32, Element::Float8E5M2);
        for (const Architecture& architecture : standard_architectures()) {
            CAPTURE(architecture.name());
            const std::vector<KernelSpec> shipped = shipped_kernels(architecture);
            const bool expected = architecture.number() >= 89;
            CHECK(has(shipped, quantize_rows_kernel()) == expected);
            CHECK(has(shipped, gradient) == expected);
            CHECK(has(shipped, cross_entropy_kernel(Element::Float32)));
        }
        DrafterKernelShape drafter = shipped_drafters().front().drafter;
        const Architecture hopper = Architecture::parse("sm_90a");
        CHECK_FALSE(has(drafter_kernels(drafter, hopper), quantize_rows_kernel()));
        drafter.float8_logits = true;
        CHECK(has(drafter_kernels(drafter, hopper), quantize_rows_kernel()));
        CHECK_FALSE(has(drafter_kernels(drafter, hopper), gradient));
        drafter.float8_gradient = true;
        CHECK(has(drafter_kernels(drafter, hopper), gradient));
    }
}

}  // namespace dflash::kernels
