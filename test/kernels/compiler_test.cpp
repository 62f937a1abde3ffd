// SPDX-License-Identifier: Apache-2.0
#include "tiny_kernel.hpp"

#include <dflash/kernels/compiler.hpp>
#include <dflash/kernels/kernel_error.hpp>

#include <algorithm>
#include <atomic>
#include <doctest/doctest.h>
#include <optional>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <vector>

namespace dflash::kernels {
namespace {

/// The error of a compilation that must fail.
KernelError failure_of(const Compiler& compiler,
                       const KernelSpec& spec,
                       const std::string& architecture = "sm_90a") {
    try {
        compiler.compile(spec, Architecture::parse(architecture));
    } catch (const KernelError& error) {
        return error;
    }
    FAIL("expected a KernelError");
    throw;
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

TEST_SUITE("kernels.compiler") {
    TEST_CASE("compile: gives machine code for exactly the architecture, and no PTX") {
        const Compiler compiler(tiny_sources());
        for (const Architecture& architecture : standard_architectures()) {
            CAPTURE(architecture.name());
            const KernelBinary binary = compiler.compile(tiny_kernel(3), architecture);
            REQUIRE(binary.cubin.size() > 64);
            CHECK(binary.cubin.substr(0, 4) == "\177ELF");
            CHECK(contains(binary.cubin, "tiny"));
            // NVRTC writes the target of the compilation into the file.
            CHECK(contains(binary.cubin, architecture.name()));
            CHECK_FALSE(contains(binary.cubin, ".version "));
            CHECK(binary.resources.registers > 0);
            CHECK(binary.resources.registers <= 16);
            CHECK(binary.resources.spill_store_bytes == 0);
            CHECK(binary.compiler == compiler.identity());
        }
    }

    TEST_CASE("compile: the same kernel gives the same bytes, also from many threads at once") {
        const Compiler compiler(tiny_sources());
        const std::string expected = compiler.compile(tiny_kernel(1), kTestArchitecture).cubin;
        CHECK(expected != compiler.compile(tiny_kernel(2), kTestArchitecture).cubin);
        std::vector<std::string> cubins(4);
        {
            std::vector<std::jthread> threads;
            threads.reserve(cubins.size());
            for (std::string& cubin : cubins) {
                threads.emplace_back([&] {
                    cubin =
                        Compiler(tiny_sources()).compile(tiny_kernel(1), kTestArchitecture).cubin;
                });
            }
        }
        for (const std::string& cubin : cubins) {
            CHECK(cubin == expected);
        }
    }

    TEST_CASE("compile: leaves the stack limit of the process as it is") {
        const Compiler compiler(tiny_sources());
        compiler.compile(tiny_kernel(0), kTestArchitecture);
        rlimit before{};
        ::getrlimit(RLIMIT_STACK, &before);
        std::atomic<bool> changed = false;
        {
            const std::jthread watcher([&](const std::stop_token& stop) {
                while (!stop.stop_requested()) {
                    rlimit now{};
                    ::getrlimit(RLIMIT_STACK, &now);
                    changed = changed || now.rlim_cur != before.rlim_cur;
                }
            });
            for (int i = 0; i < 3; ++i) {
                compiler.compile(tiny_kernel(i), kTestArchitecture);
            }
        }
        CHECK_FALSE(changed);
    }

    TEST_CASE("compile: counts what it hands to NVRTC") {
        const Compiler compiler(tiny_sources());
        const std::int64_t before = Compiler::num_compilations();
        compiler.compile(tiny_kernel(0), kTestArchitecture);
        compiler.compile(tiny_kernel(0), kTestArchitecture);
        CHECK(Compiler::num_compilations() == before + 2);
    }

    TEST_CASE("compile: constants, threads and shared memory arrive in the source") {
        SourceSet sources;
        sources.set("values.cu",
                    "static_assert(WIDTH == 7 && DEPTH == -2);\n"
                    "static_assert(DFLASH_THREADS == 96 && DFLASH_MIN_BLOCKS == 2);\n"
                    "static_assert(DFLASH_DYNAMIC_SHARED_BYTES == 4096);\n"
                    "extern \"C\" __global__ void values() {}\n");
        const Compiler compiler(sources);
        compiler.compile({.source = "values.cu",
                          .entry = "values",
                          .constants = {{"WIDTH", 7}, {"DEPTH", -2}},
                          .threads = 96,
                          .dynamic_shared_bytes = 4096,
                          .min_blocks_per_sm = 2},
                         kTestArchitecture);
    }

    TEST_CASE("errors: no libnvrtc") {
        const Compiler compiler(tiny_sources(), {"libnvrtc-of-nobody.so.1", "libnvrtc-other.so"});
        CHECK_FALSE(compiler.identity().has_value());
        const std::int64_t before = Compiler::num_compilations();
        const KernelError error = failure_of(compiler, tiny_kernel(0));
        CHECK(error.fault() == KernelFault::NoCompiler);
        CHECK(exit_code(error.kind()) == 4);
        CHECK(contains(error.parts().cause, "libnvrtc-of-nobody.so.1"));
        CHECK(contains(error.parts().cause, "libnvrtc-other.so"));
        CHECK(Compiler::num_compilations() == before);
    }

    TEST_CASE("errors: an NVRTC that is too old for the GPU") {
        const Compiler compiler(tiny_sources());
        const KernelError error = failure_of(compiler, tiny_kernel(0), "sm_990a");
        CHECK(error.fault() == KernelFault::CompilerTooOld);
        CHECK(contains(error.parts().what, "NVRTC 1"));
        CHECK(contains(error.parts().what, "990"));
    }

    TEST_CASE("errors: a source that does not compile, with the whole log") {
        SourceSet sources = tiny_sources();
        sources.set("tiny_value.cuh",
                    "#pragma once\n"
                    "__device__ inline int tiny_value() { return first_wrong + second_wrong; }\n");
        const KernelError error = failure_of(Compiler(sources), tiny_kernel(0));
        CHECK(error.fault() == KernelFault::Source);
        CHECK(contains(error.parts().cause, "tiny_value.cuh(2)"));
        CHECK(contains(error.parts().cause, "first_wrong"));
        CHECK(contains(error.parts().cause, "second_wrong"));
        CHECK(contains(error.parts().where, "-DVALUE=0"));
        CHECK(contains(error.parts().what, "tiny[VALUE=0] for sm_90a"));
    }

    TEST_CASE("errors: instructions that the architecture lacks are found here, not at load time") {
        SourceSet sources;
        sources.set("fence.cu",
                    "extern \"C\" __global__ void fence() {\n"
                    "    asm volatile(\"wgmma.fence.sync.aligned;\");\n"
                    "}\n");
        const Compiler compiler(sources);
        const KernelSpec spec{.source = "fence.cu", .entry = "fence", .threads = 128};
        CHECK_NOTHROW(compiler.compile(spec, Architecture::parse("sm_90a")));
        CHECK(failure_of(compiler, spec, "sm_90").fault() == KernelFault::Source);
        CHECK(failure_of(compiler, spec, "sm_80").fault() == KernelFault::Source);
    }

    TEST_CASE("errors: an entry point that is not there") {
        KernelSpec spec = tiny_kernel(0);
        spec.entry = "other";
        const KernelError error = failure_of(Compiler(tiny_sources()), spec);
        CHECK(error.fault() == KernelFault::Source);
        CHECK(contains(error.parts().hint, "other"));
    }

    TEST_CASE("errors: a spill, unless it is listed with its reason for this architecture") {
        // 1024 threads leave 64 registers for 96 values that are all alive.
        SourceSet sources;
        sources.set("hungry.cu",
                    "extern \"C\" __global__ void __launch_bounds__(DFLASH_THREADS)\n"
                    "hungry(float* data, int n) {\n"
                    "    float x[96];\n"
                    "#pragma unroll\n"
                    "    for (int i = 0; i < 96; ++i) x[i] = data[i * 1024 + threadIdx.x];\n"
                    "    for (int k = 0; k < n; ++k) {\n"
                    "#pragma unroll\n"
                    "        for (int i = 0; i < 96; ++i) x[i] = x[i] * x[(i + 1) % 96] + k;\n"
                    "    }\n"
                    "#pragma unroll\n"
                    "    for (int i = 0; i < 96; ++i) data[i * 1024 + threadIdx.x] = x[i];\n"
                    "}\n");
        const Compiler compiler(sources);
        KernelSpec spec{.source = "hungry.cu", .entry = "hungry", .threads = 1024};
        const KernelError error = failure_of(compiler, spec);
        CHECK(error.fault() == KernelFault::Spill);
        CHECK(contains(error.parts().cause, "bytes spill stores"));
        spec.allowed_spills = {{.architecture = "sm_80", .max_bytes = 4096, .reason = "a test"}};
        CHECK(failure_of(compiler, spec).fault() == KernelFault::Spill);
        spec.allowed_spills = {{.architecture = "sm_90a", .max_bytes = 4096, .reason = "a test"}};
        const KernelBinary binary = compiler.compile(spec, kTestArchitecture);
        CHECK(binary.resources.spill_store_bytes > 0);
        CHECK(binary.resources.stack_bytes > 0);
        CHECK(binary.resources.registers <= 64);
    }

    TEST_CASE("errors: more shared memory than a block can have") {
        KernelSpec spec = tiny_kernel(0);
        spec.dynamic_shared_bytes = 100 * 1024;
        const Compiler compiler(tiny_sources());
        CHECK_NOTHROW(compiler.compile(spec, Architecture::parse("sm_90a")));
        const KernelError error = failure_of(compiler, spec, "sm_120a");
        CHECK(error.fault() == KernelFault::SharedMemory);
        CAPTURE(error.parts().what);
        CHECK(contains(error.parts().what, "100.0 KiB"));
        CHECK(contains(error.parts().what, "99.0 KiB"));
    }

    TEST_CASE("resources: static shared memory is read from the compiler's log") {
        SourceSet sources;
        sources.set("shared.cu",
                    "extern \"C\" __global__ void shared_sum(int* out) {\n"
                    "    __shared__ int values[500];\n"
                    "    values[threadIdx.x] = out[threadIdx.x];\n"
                    "    __syncthreads();\n"
                    "    out[threadIdx.x] = values[499 - threadIdx.x];\n"
                    "}\n");
        const KernelBinary binary = Compiler(sources).compile(
            {.source = "shared.cu", .entry = "shared_sum", .threads = 500},
            Architecture::parse("sm_89"));
        CHECK(binary.resources.static_shared_bytes == 2000);
    }
}

}  // namespace
}  // namespace dflash::kernels
