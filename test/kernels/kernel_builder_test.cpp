// SPDX-License-Identifier: Apache-2.0
#include "captured_log.hpp"
#include "scratch_folder.hpp"
#include "tiny_kernel.hpp"

#include <dflash/core/error.hpp>
#include <dflash/io/output_file.hpp>
#include <dflash/kernels/kernel_builder.hpp>
#include <dflash/kernels/kernel_error.hpp>

#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <pthread.h>
#include <sched.h>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace dflash::kernels {
namespace {

std::vector<KernelRequest> requests(int count) {
    std::vector<KernelRequest> list;
    for (const KernelSpec& spec : tiny_kernels(count)) {
        list.push_back({spec, kTestArchitecture});
    }
    return list;
}

KernelError failure_of(const KernelBuilder& builder, const std::vector<KernelRequest>& list) {
    try {
        builder.build(list);
    } catch (const KernelError& error) {
        return error;
    }
    FAIL("expected a KernelError");
    throw;
}

TEST_SUITE("kernels.kernel_builder") {
    TEST_CASE("build: compiles what is missing, reads the rest, and keeps the order") {
        const ScratchFolder folder;
        const CapturedLog log;
        const KernelBuilder builder(tiny_sources(), {.folder = folder.path()}, {.num_threads = 2});
        std::int64_t before = Compiler::num_compilations();
        for (const BuiltKernel& kernel : builder.build(requests(2))) {
            CHECK(kernel.origin == KernelOrigin::Compiled);
            CHECK(kernel.source.starts_with("dflash-nvrtc"));
        }
        CHECK(Compiler::num_compilations() == before + 2);

        before = Compiler::num_compilations();
        const std::vector<BuiltKernel> kernels = builder.build(requests(5));
        CHECK(Compiler::num_compilations() == before + 3);
        REQUIRE(kernels.size() == 5);
        for (std::size_t i = 0; i < kernels.size(); ++i) {
            CAPTURE(i);
            CHECK(kernels[i].request.spec == tiny_kernel(static_cast<std::int64_t>(i)));
            CHECK(kernels[i].origin == (i < 2 ? KernelOrigin::Cache : KernelOrigin::Compiled));
            CHECK(kernels[i].binary.cubin.substr(0, 4) == "\177ELF");
        }
        CHECK(builder.cache().list().size() == 5);
        CHECK(log.warnings().empty());
    }

    TEST_CASE("build: a machine without NVRTC takes packs, and kernels of its cache") {
        const ScratchFolder folder;
        KernelBuilder(tiny_sources(), {.folder = folder / "pack"}).build(requests(3));
        KernelBuilder(tiny_sources(), {.folder = folder / "cache"}).build(requests(1));
        const std::int64_t before = Compiler::num_compilations();
        const KernelBuilder builder(tiny_sources(),
                                    {.folder = folder / "cache", .packs = {folder / "pack"}},
                                    {},
                                    {"libnvrtc-of-nobody.so"});
        const std::vector<BuiltKernel> kernels = builder.build(requests(3));
        CHECK(kernels[0].origin == KernelOrigin::Cache);
        CHECK(kernels[1].origin == KernelOrigin::Pack);
        CHECK(kernels[2].origin == KernelOrigin::Pack);
        CHECK(Compiler::num_compilations() == before);

        const KernelError error = failure_of(builder, requests(5));
        CHECK(error.fault() == KernelFault::NoCompiler);
        CHECK(error.parts().where.find("2 kernels are missing") != std::string::npos);
        CHECK(error.parts().where.find(folder / "pack") != std::string::npos);
    }

    TEST_CASE("build: DFLASH_NO_JIT=1 makes a miss an error, and a hit no problem") {
        const ScratchFolder folder;
        KernelBuilder(tiny_sources(), {.folder = folder.path()}).build(requests(2));
        ::setenv("DFLASH_NO_JIT", "1", 1);
        const BuilderOptions options = BuilderOptions::from_environment();
        ::unsetenv("DFLASH_NO_JIT");
        CHECK(options.forbid_compilation);
        CHECK_FALSE(BuilderOptions::from_environment().forbid_compilation);
        const KernelBuilder builder(tiny_sources(), {.folder = folder.path()}, options);
        const std::int64_t before = Compiler::num_compilations();
        CHECK(builder.build(requests(2)).size() == 2);
        const KernelError error = failure_of(builder, requests(3));
        CHECK(error.fault() == KernelFault::Forbidden);
        CHECK(exit_code(error.kind()) == 4);
        CHECK(error.parts().what.find("tiny[VALUE=2]") != std::string::npos);
        CHECK(Compiler::num_compilations() == before);
    }

    TEST_CASE("build: damaged kernels are compiled again and replaced") {
        const ScratchFolder folder;
        const KernelBuilder builder(tiny_sources(), {.folder = folder.path()});
        builder.build(requests(2));
        const std::string damaged = builder.cache().list().at(0).path;
        std::filesystem::resize_file(damaged, std::filesystem::file_size(damaged) / 2);
        const CapturedLog log;
        const std::int64_t before = Compiler::num_compilations();
        CHECK(builder.build(requests(2)).size() == 2);
        CHECK(Compiler::num_compilations() == before + 1);
        CHECK(log.warnings().size() == 1);
        for (const CacheEntry& entry : builder.cache().list()) {
            CHECK(entry.fault.empty());
        }
    }

    TEST_CASE("build: a folder that cannot be written costs one warning, not the build") {
        const ScratchFolder folder;
        const CapturedLog log;
        { io::OutputFile(folder / "file", io::OutputFile::Mode::Create).write("x"); }
        const KernelBuilder builder(tiny_sources(), {.folder = folder / "file"});
        const std::vector<BuiltKernel> built = builder.build(requests(3));
        CHECK(built.size() == 3);
        CHECK(log.warnings().size() == 1);
        for (const BuiltKernel& kernel : built) {
            CHECK_FALSE(kernel.is_kept);
        }
    }

    TEST_CASE("build: kernels that others hold are waited for once, not one after another") {
        const ScratchFolder folder;
        BuilderOptions options;
        options.num_threads = 1;
        options.lock_timeout_s = 0.2;
        const KernelBuilder builder(tiny_sources(), {.folder = folder.path()}, options);
        std::vector<std::shared_ptr<void>> locks;
        for (const KernelRequest& request : requests(6)) {
            const std::string digest =
                kernel_digest(builder.compiler().sources(), request.spec, request.architecture);
            locks.push_back(
                builder.cache().lock({digest, builder.compiler().identity()}, /*timeout_s=*/0));
            REQUIRE(locks.back() != nullptr);
        }
        double waited = 0;
        for (const BuiltKernel& kernel : builder.build(requests(6))) {
            CHECK(kernel.origin == KernelOrigin::Compiled);
            waited += kernel.seconds - kernel.binary.compile_s;
        }
        CHECK(waited >= 0.19);
        CHECK(waited < 0.6);
    }

    TEST_CASE("build: the cache is kept within its size, without what was just built") {
        const ScratchFolder folder;
        const CapturedLog log;
        KernelBuilder(tiny_sources(), {.folder = folder.path()}).build(requests(4));
        const KernelBuilder builder(tiny_sources(), {.folder = folder.path(), .max_bytes = 1});
        std::vector<KernelRequest> list = requests(6);
        list.erase(list.begin(), list.begin() + 3);
        builder.build(list);
        std::set<std::string> left;
        for (const CacheEntry& entry : builder.cache().list()) {
            left.insert(entry.kernel);
        }
        CHECK(left == std::set<std::string>{"tiny[VALUE=3]", "tiny[VALUE=4]", "tiny[VALUE=5]"});
    }

    TEST_CASE("build: a spill that is no longer allowed is refused from the cache, too") {
        const ScratchFolder folder;
        const KernelBuilder builder(tiny_sources(), {.folder = folder.path()});
        const BuiltKernel kernel = builder.build(requests(1)).at(0);
        KernelBinary spilling = kernel.binary;
        spilling.resources.spill_store_bytes = 16;
        REQUIRE(builder.cache().store({kernel.digest, builder.compiler().identity()},
                                      kernel.request.spec,
                                      kernel.request.architecture,
                                      spilling));
        CHECK(failure_of(builder, requests(1)).fault() == KernelFault::Spill);
        std::vector<KernelRequest> allowed = requests(1);
        allowed[0].spec.allowed_spills = {{"sm_90a", 16, "a test"}};
        CHECK(builder.build(allowed).at(0).origin == KernelOrigin::Cache);
    }

    TEST_CASE("build: the first failure ends it, and no half result is kept") {
        const ScratchFolder folder;
        SourceSet sources = tiny_sources();
        sources.set("tiny_value.cuh",
                    "#pragma once\n#if VALUE == 2\n#error two\n#endif\n"
                    "__device__ inline int tiny_value() { return VALUE; }\n");
        const KernelBuilder builder(sources, {.folder = folder.path()}, {.num_threads = 3});
        const KernelError error = failure_of(builder, requests(4));
        CHECK(error.fault() == KernelFault::Source);
        CHECK(error.parts().what.find("VALUE=2") != std::string::npos);
        for (const CacheEntry& entry : builder.cache().list()) {
            CHECK(entry.kernel != "tiny[VALUE=2]");
        }
    }

    TEST_CASE("build: a cancelled build compiles nothing more") {
        const KernelBuilder builder(tiny_sources(), {.folder = ""}, {.num_threads = 1});
        const CapturedLog log;
        const std::int64_t before = Compiler::num_compilations();
        CHECK_THROWS_AS(builder.build(requests(3), [] { return true; }), Error);
        CHECK(Compiler::num_compilations() == before);
    }

    TEST_CASE("build: the pool of a pinned thread may use all processors of the process") {
        const CapturedLog log;
        const auto processors = [] {
            cpu_set_t mask;
            CPU_ZERO(&mask);
            ::pthread_getaffinity_np(::pthread_self(), sizeof(mask), &mask);
            return CPU_COUNT(&mask);
        };
        int of_pool = 0;
        int of_caller = 0;
        std::jthread([&] {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &one);
            ::pthread_setaffinity_np(::pthread_self(), sizeof(one), &one);
            KernelBuilder(tiny_sources(), {.folder = ""}).build(requests(1), [&] {
                of_pool = processors();  // asked on the thread that compiles
                return false;
            });
            of_caller = processors();
        }).join();
        CHECK(of_pool == processors());
        CHECK(of_caller == 1);
    }
}

}  // namespace
}  // namespace dflash::kernels
