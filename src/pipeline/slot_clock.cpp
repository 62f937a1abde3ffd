// SPDX-License-Identifier: Apache-2.0
#include "slot_clock.hpp"

#include <algorithm>

namespace dflash::pipeline {

void SlotClock::row_packed() {
    const std::lock_guard lock(mutex_);
    account(Clock::now());
    ++queued_;
}

void SlotClock::row_given_slot() {
    const std::lock_guard lock(mutex_);
    account(Clock::now());
    --queued_;
    ++in_slots_;
    ++in_target_;
}

void SlotClock::target_finished() {
    const std::lock_guard lock(mutex_);
    account(Clock::now());
    --in_target_;
}

void SlotClock::slot_returned() {
    const std::lock_guard lock(mutex_);
    account(Clock::now());
    --in_slots_;
}

double SlotClock::target_waited_s() const {
    const std::lock_guard lock(mutex_);
    return waited_s_ + idle_share() * std::chrono::duration<double>(Clock::now() - since_).count();
}

double SlotClock::data_waited_s() const {
    const std::lock_guard lock(mutex_);
    return starved_s_ +
           starved_share() * std::chrono::duration<double>(Clock::now() - since_).count();
}

double SlotClock::idle_share() const {
    if (in_slots_ < num_slots_) {
        return 0;
    }
    // A replica that a queued row could have is idle; others lack rows, not slots.
    const std::int64_t idle =
        std::min<std::int64_t>(queued_, std::max<std::int64_t>(num_replicas_ - in_target_, 0));
    return static_cast<double>(idle) / num_replicas_;
}

double SlotClock::starved_share() const {
    // Replicas that could have a slot at once, less the rows that are on their way to one.
    const std::int64_t could_work =
        std::min<std::int64_t>(num_replicas_ - in_target_, num_slots_ - in_slots_);
    return static_cast<double>(std::max<std::int64_t>(could_work - queued_, 0)) / num_replicas_;
}

void SlotClock::account(Clock::time_point now) {
    const double seconds = std::chrono::duration<double>(now - since_).count();
    waited_s_ += idle_share() * seconds;
    starved_s_ += starved_share() * seconds;
    since_ = now;
}

}  // namespace dflash::pipeline
