// SPDX-License-Identifier: Apache-2.0
// Where the samples and rows of a pipeline are, for reports while it runs or hangs.
#pragma once

#include <dflash/core/activity.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dflash::pipeline {

/// A picture of one moment; the parts are read one after the other while the graph moves.
struct PipelineSnapshot {
    // Messages that have passed each station so far, in the order of the graph. END counts.
    std::int64_t samples_read = 0;
    std::int64_t samples_packed = 0;
    std::int64_t rows_packed = 0;
    std::int64_t rows_given_slots = 0;
    std::int64_t rows_at_step = 0;
    std::int64_t rows_returned = 0;

    /// One entry a slot: where its row is ("in the target"), the row's number, since when.
    std::vector<Activity::Now> slots;

    /// Nodes whose stage is being called: "encode", "pack", with the sample or row.
    std::vector<std::pair<std::string, Activity::Now>> busy_nodes;

    /// Read, and not packed yet.
    std::int64_t samples_in_flight() const { return samples_read - samples_packed; }

    /// Packed, and without a slot.
    std::int64_t rows_waiting() const { return rows_packed - rows_given_slots; }
};

/// Lives on when the pipeline has gone. From any thread, without a lock.
class PipelineBoard {
  public:
    virtual ~PipelineBoard() = default;

    virtual PipelineSnapshot snapshot() const = 0;
};

}  // namespace dflash::pipeline
