// SPDX-License-Identifier: Apache-2.0
// The verdict of the golden comparisons in test programs: every comparison is a check of doctest.
#include "golden_check.hpp"

#include <doctest/doctest.h>

namespace dflash::golden {

void Verdict::compare(const std::string& quantity,
                      double error,
                      double tolerance,
                      const std::string& where) {
    ++compared_;
    CAPTURE(quantity);
    CAPTURE(where);
    CHECK(error <= tolerance);
    failed_ += error <= tolerance ? 0 : 1;
}

void Verdict::exact(const std::string& quantity,
                    std::int64_t wrong,
                    std::int64_t total,
                    const std::string& where) {
    ++compared_;
    CAPTURE(quantity);
    CAPTURE(where);
    CAPTURE(total);
    CHECK(wrong == 0);
    failed_ += wrong == 0 ? 0 : 1;
}

void Verdict::note(const std::string& text) {
    MESSAGE(text);
}

}  // namespace dflash::golden
