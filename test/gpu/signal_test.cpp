// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/event.hpp>
#include <dflash/gpu/signal.hpp>

#include <doctest/doctest.h>
#include <string>
#include <utility>

namespace dflash::gpu {
namespace {

TEST_SUITE("gpu.signal") {
    TEST_CASE("signal: does nothing on CPU devices") {
        Signal signal;
        const StreamView none;
        CHECK(!none.is_cuda());
        CHECK(none.done());
        signal.wait(none);
        signal.record(none);
        signal.wait(none);
        CHECK(signal.reached());
        signal.synchronize();
        none.synchronize();
        const Signal moved = std::move(signal);
        CHECK(moved.reached());
    }

    TEST_CASE("check: success passes, failure is a device error with name and place") {
        CHECK_NOTHROW(check(cudaSuccess));
        try {
            check(cudaErrorMemoryAllocation);
            FAIL("no error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Device);
            CHECK(error.parts().cause.find("cudaErrorMemoryAllocation") == 0);
            CHECK(error.parts().where.find("signal_test.cpp:") == 0);
            CHECK(!error.parts().hint.empty());
        }
    }
}

}  // namespace
}  // namespace dflash::gpu
