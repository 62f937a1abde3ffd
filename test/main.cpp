// SPDX-License-Identifier: Apache-2.0
// main() of all test programs that bring none of their own: doctest takes longer to compile than
// most tests.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
