// SPDX-License-Identifier: Apache-2.0
// This program is built with a compile barrier whose lock is removed
// (DFLASH_MUTATION_NO_BARRIER_LOCK). The test of the cold cache must see the difference, or it
// proves nothing.
#include "captured_log.hpp"
#include "child_process.hpp"
#include "cold_cache_race.hpp"
#include "tiny_kernel.hpp"

#include <doctest/doctest.h>

namespace dflash::kernels {
namespace {

TEST_SUITE("kernels.barrier_mutation") {
    // In a process of its own: threads that build at the same time may crash it as well.
    TEST_CASE("child: three threads at a cold cache compile each kernel once" * doctest::skip()) {
        const CapturedLog log;
        const KernelBuilder builder(tiny_sources(), {.folder = ""});
        const RaceResult result =
            race(3, builder, [](const Architecture&) { return tiny_kernels(3); });
        CHECK(result.num_errors == 0);
        CHECK(result.num_compilations == result.num_kernels);
    }

    TEST_CASE("mutation: without the lock of the barrier the cold cache test fails") {
        for (int round = 0; round < 3; ++round) {
            CAPTURE(round);
            ChildProcess child("child: three threads at a cold cache compile each kernel once",
                               {},
                               /*quiet=*/true);
            const int result = child.wait();
            CHECK(result != 0);
            CHECK(result != -1);
        }
    }
}

}  // namespace
}  // namespace dflash::kernels
