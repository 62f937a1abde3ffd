// SPDX-License-Identifier: Apache-2.0
// A whole run of the pipeline on fake stages, described by numbers, and what came out of it.
#pragma once

#include "fake_stages.hpp"

#include <dflash/pipeline/pipeline.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <sched.h>
#include <string>
#include <vector>

namespace dflash::pipeline {

struct Scenario {
    std::int64_t num_samples = 100;
    std::int64_t window = 8;
    int num_slots = 2;
    int num_replicas = 1;  ///< 0: one without a dispatcher
    int capacity = 1;
    int num_threads = 2;
    int max_row_samples = 3;
    int max_pause_us = 0;
    int rows_held = 1;               ///< rows that the loop holds before it lets one go, at random
    bool release_elsewhere = false;  ///< rows are let go on another thread
    std::optional<int> stop_after = {};  ///< stop() after that many rows
    bool keep_leases = false;            ///< ... and let go of the rows held only then, elsewhere
    Fault fault = {};
    std::uint64_t seed = 1;
    std::function<bool(std::int64_t)> usable = [](std::int64_t) { return true; };
};

struct Outcome {
    std::vector<std::int64_t> rows;     ///< indices in the order of arrival
    std::vector<std::int64_t> samples;  ///< ids in the order of arrival
    int num_wrong_slots = 0;            ///< slot is not index mod slots, or holds another row
    int num_empty_rows = 0;
    std::string next_error;  ///< what next() threw
    std::string stop_error;  ///< what stop() threw
    double seconds = 0;
    std::int64_t samples_read = 0;  ///< by the source, END included
    PipelineStats stats;
};

/// Text of a scenario for messages.
std::string to_string(const Scenario& scenario);

/// Runs to the end, the error, or `stop_after`. Ends the process if that takes more than 10 s.
Outcome run(const Scenario& scenario);

/// Every usable sample arrived once and in order, every row once and in order, each in its slot.
/// Empty if so, else what is wrong.
std::string check_complete(const Scenario& scenario, const Outcome& outcome);

/// Keeps the calling thread, and all threads that it starts, on one core.
class OneCore {
  public:
    OneCore();
    ~OneCore();
    OneCore(const OneCore&) = delete;
    OneCore& operator=(const OneCore&) = delete;

  private:
    cpu_set_t before_;
};

}  // namespace dflash::pipeline
