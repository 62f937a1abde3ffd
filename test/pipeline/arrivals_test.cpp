// SPDX-License-Identifier: Apache-2.0
#include "arrivals.hpp"

#include <dflash/core/error.hpp>

#include <doctest/doctest.h>

namespace dflash::pipeline {

TEST_SUITE("pipeline.arrivals") {
    TEST_CASE("accepts an idle graph only if nothing was lost at any station") {
        Arrivals arrivals;
        arrivals.samples_read = arrivals.samples_packed = 41;
        arrivals.rows_packed = arrivals.rows_given_slots = 7;
        arrivals.rows_at_step = arrivals.rows_returned = 7;
        CHECK_THROWS_AS(check_all_arrived(arrivals), Error);
        arrivals.end_returned = true;
        CHECK_NOTHROW(check_all_arrived(arrivals));
        int station = 0;
        for (auto* count : {&arrivals.samples_packed,
                            &arrivals.rows_given_slots,
                            &arrivals.rows_at_step,
                            &arrivals.rows_returned}) {
            CAPTURE(station++);
            --*count;
            try {
                check_all_arrived(arrivals);
                FAIL("a lost message passes");
            } catch (const Error& error) {
                CHECK(error.kind() == ErrorKind::Internal);
            }
            ++*count;
        }
        CHECK_NOTHROW(check_all_arrived(arrivals));
    }
}

}  // namespace dflash::pipeline
