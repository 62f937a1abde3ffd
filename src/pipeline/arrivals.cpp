// SPDX-License-Identifier: Apache-2.0
#include "arrivals.hpp"

#include <dflash/core/check.hpp>

namespace dflash::pipeline {

void check_all_arrived(const Arrivals& arrivals) {
    const std::int64_t samples = arrivals.samples_read;
    const std::int64_t rows = arrivals.rows_packed;
    const bool all_arrived = arrivals.end_returned && arrivals.samples_packed == samples &&
                             arrivals.rows_given_slots == rows && arrivals.rows_at_step == rows &&
                             arrivals.rows_returned == rows;
    DFLASH_CHECK(all_arrived,
                 "the flow graph went idle, but not every message arrived: {} samples read, {} "
                 "packed; {} rows packed, {} given a slot, {} at the step, {} returned; END {}",
                 samples,
                 arrivals.samples_packed.load(),
                 rows,
                 arrivals.rows_given_slots.load(),
                 arrivals.rows_at_step.load(),
                 arrivals.rows_returned.load(),
                 arrivals.end_returned ? "arrived" : "did not arrive");
}

}  // namespace dflash::pipeline
