// SPDX-License-Identifier: Apache-2.0
// main() of all test programs that need a GPU: without one they are skipped (CTest's
// SKIP_RETURN_CODE).
#define DOCTEST_CONFIG_IMPLEMENT
#include <dflash/gpu/device.hpp>

#include <cstdio>
#include <doctest/doctest.h>

int main(int argc, char** argv) {
    if (dflash::gpu::cuda_device_count() == 0) {
        std::puts("skipped: no GPU");
        return 77;
    }
    return doctest::Context(argc, argv).run();
}
