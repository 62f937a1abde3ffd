// SPDX-License-Identifier: Apache-2.0
// Counts the messages that pass the stations of the graph. A message lost before a sequencer
// swallows all later ones and the graph still ends as if all were well, so the counts are compared
// once it is idle.
#pragma once

#include <atomic>
#include <cstdint>

namespace dflash::pipeline {

/// Messages that passed each station, in the order of the graph; END counts like any other.
struct Arrivals {
    std::atomic<std::int64_t> samples_read = 0;
    std::atomic<std::int64_t> samples_packed = 0;
    std::atomic<std::int64_t> rows_packed = 0;
    std::atomic<std::int64_t> rows_given_slots = 0;
    std::atomic<std::int64_t> rows_at_step = 0;
    std::atomic<std::int64_t> rows_returned = 0;
    std::atomic<bool> end_returned = false;
};

/// Of an idle graph: throws Error{Internal}, with all counts, unless every sample reached the
/// packer, every row gave its slot back, and END was the last of them.
void check_all_arrived(const Arrivals& arrivals);

}  // namespace dflash::pipeline
