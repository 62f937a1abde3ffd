// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

int main(int argc, char** argv) {
    at::set_num_threads(1);  // as on a worker
    return doctest::Context(argc, argv).run();
}
