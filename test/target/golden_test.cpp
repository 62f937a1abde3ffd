// SPDX-License-Identifier: Apache-2.0
// The comparison that golden_check makes, on the reference targets of the project.
#include <doctest/doctest.h>
#include <golden_check.hpp>
#include <string>

namespace dflash::golden {

TEST_SUITE("target.golden") {
    TEST_CASE("target: agrees with the reference implementation, alone and packed") {
        for (const char* name : {"T1", "T1b", "T3"}) {
            CAPTURE(name);
            Verdict verdict;
            check_target(std::string("test/golden/targets/") + name, Options{}, verdict);
            CHECK(verdict.ok());
        }
    }
}

}  // namespace dflash::golden
