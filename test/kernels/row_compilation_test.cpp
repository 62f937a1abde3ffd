// SPDX-License-Identifier: Apache-2.0
// The row-wise kernels beyond those that kernel_budgets.txt lists: every type and size compiles
// without spills and without a stack, for the oldest and the newest architecture.
#include "rms_norm_variants.hpp"

#include <dflash/kernels/adamw.hpp>
#include <dflash/kernels/compiler.hpp>
#include <dflash/kernels/cross_entropy.hpp>
#include <dflash/kernels/head_norm.hpp>
#include <dflash/kernels/rms_norm.hpp>
#include <dflash/kernels/swiglu.hpp>

#include <algorithm>
#include <atomic>
#include <doctest/doctest.h>
#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace dflash::kernels {
namespace {

constexpr Element kBf16 = Element::BFloat16;
constexpr Element kFp32 = Element::Float32;

struct Compilation {
    KernelSpec spec;
    Architecture architecture;
    KernelResources resources{};
    std::string error{};
};

void check_compilation(const std::vector<KernelSpec>& specs) {
    std::vector<Compilation> kernels;
    for (const KernelSpec& spec : specs) {
        CHECK(spec.allowed_spills.empty());
        for (const char* const name : {"sm_80", "sm_120a"}) {
            kernels.push_back({.spec = spec, .architecture = Architecture::parse(name)});
        }
    }
    const Compiler compiler(SourceSet::embedded());
    std::atomic<std::size_t> next = 0;
    const auto work = [&] {
        for (std::size_t i = next++; i < kernels.size(); i = next++) {
            try {
                kernels[i].resources =
                    compiler.compile(kernels[i].spec, kernels[i].architecture).resources;
            } catch (const std::exception& error) {
                kernels[i].error = error.what();
            }
        }
    };
    {
        std::vector<std::jthread> threads;
        for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
            threads.emplace_back(work);
        }
    }
    for (const Compilation& kernel : kernels) {
        CAPTURE(kernel.spec.id());
        CAPTURE(kernel.architecture.name());
        CHECK(kernel.error == "");
        CHECK(kernel.resources.spill_store_bytes == 0);
        CHECK(kernel.resources.spill_load_bytes == 0);
        CHECK(kernel.resources.stack_bytes == 0);
        CHECK(kernel.resources.registers * kernel.spec.threads * kernel.spec.min_blocks_per_sm <=
              65536);
    }
}

TEST_SUITE("kernels.row_compilation") {
    TEST_CASE("norms of rows: all types compile at the largest size and in one warp") {
        check_compilation(rms_norm_variants(8192));
        check_compilation(rms_norm_variants(512));
    }

    TEST_CASE("norms of heads: all sizes compile, turning all columns or some") {
        std::vector<KernelSpec> specs = {
            norm_weight_gradient_kernel(), swiglu_forward_kernel(), swiglu_backward_kernel()};
        for (const HeadNormShape& shape : {HeadNormShape{32, 0},
                                           HeadNormShape{64, 0},
                                           HeadNormShape{128, 0},
                                           HeadNormShape{256, 0},
                                           HeadNormShape{256, 64}}) {
            specs.push_back(head_norm_forward_kernel(shape, /*norm=*/true));
            specs.push_back(head_norm_forward_kernel(shape, /*norm=*/false));
            specs.push_back(head_norm_backward_kernel(shape, kBf16));
            specs.push_back(head_norm_backward_kernel(shape, kFp32));
        }
        check_compilation(specs);
    }

    TEST_CASE("cross-entropy and optimizer: all types compile") {
        std::vector<KernelSpec> specs = adamw_kernels();
        specs.push_back(cross_entropy_kernel(kBf16));
        specs.push_back(cross_entropy_kernel(kFp32));
        check_compilation(specs);
    }
}

}  // namespace
}  // namespace dflash::kernels
