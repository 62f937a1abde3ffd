// SPDX-License-Identifier: Apache-2.0
// The bodies of the flow graph's nodes, as interfaces: `train` implements them with real data and
// GPUs, tests with fakes. Bodies run on TBB threads, never wait and make no CUDA call.
#pragma once

#include <dflash/data/packed_row.hpp>
#include <dflash/data/sample.hpp>

#include <functional>
#include <memory>
#include <vector>

namespace dflash::pipeline {

/// A packed row on its way; shared between the graph, the target's worker and the drafter's worker,
/// never changed after packing.
using RowPtr = std::shared_ptr<const data::PackedRow>;

class SampleSource {
  public:
    virtual ~SampleSource() = default;

    /// The next place in the order; serial. After the last sample one with `end`, then not called
    /// again. After Pipeline::stop() not called either: the graph makes the END itself.
    virtual data::SampleRef next() = 0;
};

class Encoder {
  public:
    virtual ~Encoder() = default;

    /// Bytes to tokens and loss mask; called concurrently. A sample that cannot be used comes back
    /// empty with its reason; an `end` one as it is.
    virtual data::Sample encode(const data::SampleRef& ref) = 0;
};

class RowPacker {
  public:
    virtual ~RowPacker() = default;

    /// Takes samples in order, serially; returns the rows that are complete now (none, or all rows
    /// of a window). `end` flushes and returns the remaining rows and, last, a row with `end`. Row
    /// indices are consecutive.
    virtual std::vector<data::PackedRow> push(data::Sample sample) = 0;
};

class TargetStage {
  public:
    virtual ~TargetStage() = default;

    /// Starts the target's forward of a row into `slot` and returns at once; `done` is called
    /// exactly once, from any thread, when the features are (or, on a GPU, are ordered to be) in
    /// the slot. Errors go to FirstError instead of `done`. Empty rows are passed too; the
    /// implementation answers them at once. The row with `end` is not passed. Serial, in order of
    /// rows. A `done` that comes after the run failed, or after the pipeline is gone, does nothing.
    virtual void start(RowPtr row, int slot, std::function<void()> done) = 0;

    /// Rows that can be computed at the same time; for the statistics of waiting.
    virtual int num_replicas() const { return 1; }
};

}  // namespace dflash::pipeline
