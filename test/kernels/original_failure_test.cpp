// SPDX-License-Identifier: Apache-2.0
// The scenes in which the trainer that this program replaces failed, with the real sources: threads
// that raced into a JIT, a warm cache that did not help because the check ran on every call, a
// compile error that one thread saw and the others waited on, and a silent fallback to dense
// attention of 292 GB.
#include "captured_log.hpp"
#include "child_process.hpp"
#include "cold_cache_race.hpp"
#include "fake_driver.hpp"
#include "largest_allocation.hpp"
#include "scratch_folder.hpp"

#include <dflash/core/error.hpp>
#include <dflash/kernels/attention.hpp>
#include <dflash/kernels/compile_barrier.hpp>
#include <dflash/kernels/kernel_error.hpp>

#include <atomic>
#include <doctest/doctest.h>
#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace dflash::kernels {
namespace {

constexpr const char* kFolder = "DFLASH_TEST_FOLDER";

/// Attention of the drafter of Qwen3-8B.
std::vector<KernelSpec> real_kernels(const Architecture& architecture) {
    return attention_kernels({.head_dim = 128, .group = 4, .block_size = 16}, architecture);
}

TEST_SUITE("kernels.original_failure") {
    TEST_CASE(
        "scene a: three drafter threads meet a cold cache, and each kernel is compiled once") {
        const ScratchFolder folder;
        const CapturedLog log;
        const KernelBuilder builder(SourceSet::embedded(), {.folder = folder.path()});
        const RaceResult result = race(3, builder, real_kernels);
        CHECK(result.num_kernels == 4);
        CHECK(result.num_errors == 0);
        CHECK(result.num_compilations == result.num_kernels);
        CHECK(result.num_loads == 3 * result.num_kernels);
        CHECK(log.warnings().empty());
    }

    TEST_CASE("child: warms a cache with one thread" * doctest::skip()) {
        const KernelBuilder builder(
            SourceSet::embedded(), {.folder = child_input(kFolder)}, {.num_threads = 1});
        std::vector<KernelRequest> requests;
        const Architecture architecture = FakeDriver().architecture(fake_gpu(0, 0));
        for (const KernelSpec& spec : real_kernels(architecture)) {
            requests.push_back({spec, architecture});
        }
        builder.build(requests);
    }

    TEST_CASE("scene b: another process has warmed the cache; three threads call 10,000 times") {
        const ScratchFolder folder;
        ChildProcess child("child: warms a cache with one thread",
                           Environment{{kFolder, folder.path()}});
        REQUIRE(child.wait() == 0);

        const CapturedLog log;
        const KernelBuilder builder(SourceSet::embedded(), {.folder = folder.path()});
        FakeDriver driver;
        FirstError first_error;
        const std::vector<Participant> participants = fake_drafters(3);
        CompileBarrier barrier(participants, builder, &driver, first_error);
        barrier.require("drafter", real_kernels);
        const std::int64_t before = Compiler::num_compilations();
        const std::vector<KernelSpec> specs = real_kernels(driver.architecture(fake_gpu(0, 0)));
        std::atomic<int> wrong = 0;
        std::atomic<int> arrived = 0;
        {
            std::vector<std::jthread> threads;
            threads.reserve(participants.size());
            for (const Participant& participant : participants) {
                threads.emplace_back([&] {
                    try {
                        barrier.arrive(participant.device);
                        ++arrived;
                        const void* first = barrier.kernel(specs[0], participant.device).function();
                        for (int call = 0; call < 10000; ++call) {
                            const KernelSpec& spec =
                                specs[static_cast<std::size_t>(call) % specs.size()];
                            const LoadedKernel kernel = barrier.kernel(spec, participant.device);
                            wrong += kernel.spec() == spec ? 0 : 1;
                            wrong += spec == specs[0] && kernel.function() != first ? 1 : 0;
                        }
                    } catch (...) {
                        ++wrong;
                    }
                });
            }
        }
        CHECK(arrived == 3);
        CHECK(wrong == 0);
        CHECK(Compiler::num_compilations() == before);
        CHECK(driver.num_loads() == 3 * static_cast<std::int64_t>(specs.size()));
        CHECK(barrier.report().num_of(KernelOrigin::Cache) == static_cast<int>(specs.size()));
        barrier.seal();
        barrier.check_steady();
        CHECK(log.warnings().empty());
    }

    TEST_CASE("scene c: a compile error reaches every waiter as the same error, exit 4") {
        const ScratchFolder folder;
        SourceSet sources = SourceSet::embedded();
        sources.set("attention_forward.cu",
                    *sources.find("attention_forward.cu") + "\nthis does not compile;\n");
        const KernelBuilder builder(sources, {.folder = folder.path()});
        FakeDriver driver;
        FirstError first_error;
        const std::vector<Participant> participants = fake_drafters(3);
        CompileBarrier barrier(participants, builder, &driver, first_error);
        barrier.require("drafter", [](const Architecture& architecture) {
            return std::vector<KernelSpec>{real_kernels(architecture).front()};
        });
        std::vector<std::exception_ptr> errors(3);
        const std::int64_t before = Compiler::num_compilations();
        {
            std::vector<std::jthread> threads;
            threads.reserve(participants.size());
            for (std::size_t i = 0; i < errors.size(); ++i) {
                threads.emplace_back([&, i] {
                    try {
                        barrier.arrive(participants[i].device);
                    } catch (...) {
                        errors[i] = std::current_exception();
                    }
                });
            }
        }
        CHECK(Compiler::num_compilations() == before + 1);
        for (const std::exception_ptr& error : errors) {
            REQUIRE(error);
            CHECK(error == errors.front());
        }
        try {
            std::rethrow_exception(errors.front());
        } catch (const KernelError& error) {
            CHECK(exit_code(error.kind()) == 4);
            CHECK(error.fault() == KernelFault::Source);
            CHECK(error.parts().cause.find("attention_forward.cu") != std::string::npos);
            CHECK(error.parts().cause.find("this does not compile") != std::string::npos);
        }
        CHECK(driver.num_loads() == 0);
        CHECK(KernelCache({.folder = folder.path()}).list().empty());
    }

    TEST_CASE("scene d: without kernels the start ends with exit 4, and nothing dense is tried") {
        const ScratchFolder folder;
        const KernelBuilder builder(
            SourceSet::embedded(), {.folder = folder.path()}, {}, {"libnvrtc-of-nobody.so"});
        FakeDriver driver;
        FirstError first_error;
        const std::vector<Participant> participants = {{fake_gpu(0, 0), /*drafts=*/true}};
        CompileBarrier barrier(participants, builder, &driver, first_error);
        barrier.require("drafter", real_kernels);
        const LargestAllocation allocations;
        try {
            barrier.arrive(participants[0].device);
            FAIL("expected an error");
        } catch (const KernelError& error) {
            CHECK(exit_code(error.kind()) == 4);
            CHECK(error.fault() == KernelFault::NoCompiler);
        }
        // One bit for each query and key of 512 blocks of 16 on 4096 tokens would be 12 MiB.
        CHECK(allocations.bytes() > 0);
        CHECK(allocations.bytes() < std::size_t{1} << 20);
        CHECK_THROWS_AS(
            barrier.kernel(real_kernels(driver.architecture(fake_gpu(0, 0)))[0], fake_gpu(0, 0)),
            Error);
        CHECK(driver.num_loads() == 0);
    }
}

}  // namespace
}  // namespace dflash::kernels
