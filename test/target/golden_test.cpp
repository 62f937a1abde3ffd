// SPDX-License-Identifier: Apache-2.0
// The comparison that golden_check makes, on the reference targets of this folder.
#include <dflash/core/error.hpp>

#include <doctest/doctest.h>
#include <golden_check.hpp>
#include <string>

namespace dflash::golden {

void Verdict::compare(const std::string& quantity,
                      double error,
                      double tolerance,
                      const std::string& where) {
    ++compared_;
    failed_ += error <= tolerance ? 0 : 1;
    CAPTURE(quantity);
    CAPTURE(where);
    CHECK(error <= tolerance);
}

void Verdict::exact(const std::string& quantity,
                    std::int64_t wrong,
                    std::int64_t total,
                    const std::string& where) {
    ++compared_;
    failed_ += wrong == 0 ? 0 : 1;
    CAPTURE(quantity);
    CAPTURE(total);
    CAPTURE(where);
    CHECK(wrong == 0);
}

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
