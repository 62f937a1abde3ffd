// SPDX-License-Identifier: Apache-2.0
// Measures how long the target side stood idle for want of a slot or of a row.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace dflash::pipeline {

/// Follows the rows around limiter B. Thread-safe.
class SlotClock {
  public:
    SlotClock(int num_slots, int num_replicas)
        : num_slots_(num_slots), num_replicas_(num_replicas) {}

    void row_packed();       ///< a row queues for a slot
    void row_given_slot();   ///< ... has one, and goes to the target
    void target_finished();  ///< ... left the target
    void slot_returned();    ///< ... gave its slot back

    /// Seconds of the target side, up to now, in which rows were packed, no slot was free and
    /// replicas stood idle; an idle replica of N counts as 1/N.
    double target_waited_s() const;

    /// The same for want of rows: a slot was free and no row was packed.
    double data_waited_s() const;

  private:
    using Clock = std::chrono::steady_clock;

    /// Share of the target side that is idle for want of a slot, with the counts as they are.
    double idle_share() const;
    /// ... and for want of a row.
    double starved_share() const;
    void account(Clock::time_point now);

    const int num_slots_;
    const int num_replicas_;
    mutable std::mutex mutex_;  // guards: all below
    std::int64_t queued_ = 0;
    std::int64_t in_target_ = 0;
    std::int64_t in_slots_ = 0;
    double waited_s_ = 0;
    double starved_s_ = 0;
    Clock::time_point since_ = Clock::now();
};

}  // namespace dflash::pipeline
