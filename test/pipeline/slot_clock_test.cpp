// SPDX-License-Identifier: Apache-2.0
#include "slot_clock.hpp"

#include <chrono>
#include <doctest/doctest.h>
#include <thread>

namespace dflash::pipeline {
namespace {

double waited_during_20_ms(const SlotClock& clock) {
    const double before = clock.target_waited_s();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return clock.target_waited_s() - before;
}

double starved_during_20_ms(const SlotClock& clock) {
    const double before = clock.data_waited_s();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return clock.data_waited_s() - before;
}

}  // namespace

TEST_SUITE("pipeline.slot_clock") {
    TEST_CASE("counts idle replicas only while rows wait for slots") {
        SlotClock clock(/*num_slots=*/2, /*num_replicas=*/4);
        CHECK(waited_during_20_ms(clock) == 0);
        for (int i = 0; i < 3; ++i) {
            clock.row_packed();
        }
        CHECK(waited_during_20_ms(clock) == 0);  // slots are free
        clock.row_given_slot();
        clock.row_given_slot();
        // Two of four replicas are idle, but only one row could use one.
        CHECK(waited_during_20_ms(clock) == doctest::Approx(0.005).epsilon(0.9));
        clock.row_packed();
        clock.target_finished();
        clock.target_finished();
        CHECK(waited_during_20_ms(clock) >= 0.0099);  // two rows, four idle replicas
        clock.slot_returned();
        CHECK(waited_during_20_ms(clock) == 0);
        clock.row_given_slot();
        clock.slot_returned();
        clock.row_given_slot();
        CHECK(waited_during_20_ms(clock) == 0);  // no row waits
    }

    TEST_CASE("counts idle replicas that could have a slot, but no row") {
        SlotClock clock(/*num_slots=*/3, /*num_replicas=*/2);
        CHECK(starved_during_20_ms(clock) >= 0.0199);  // nothing is packed, all is idle
        clock.row_packed();
        clock.row_given_slot();
        CHECK(starved_during_20_ms(clock) == doctest::Approx(0.01).epsilon(0.9));  // one of two
        clock.row_packed();
        CHECK(starved_during_20_ms(clock) == 0);  // the other one is about to have a row
        clock.row_given_slot();
        CHECK(starved_during_20_ms(clock) == 0);  // both are at work
        clock.target_finished();
        clock.target_finished();
        clock.row_packed();
        clock.row_given_slot();
        clock.target_finished();
        CHECK(starved_during_20_ms(clock) == 0);  // idle, but for want of a slot
    }
}

}  // namespace dflash::pipeline
