// SPDX-License-Identifier: Apache-2.0
// The flow graph of a run: samples -> limiter A -> encode -> sequencer -> pack -> queue -> limiter
// B -> target -> sequencer -> step -> (slot back to B). The training loop is the service of the
// last node: next() hands out rows in order, releasing a row's lease returns its slot.
#pragma once

#include <dflash/core/first_error.hpp>
#include <dflash/pipeline/stages.hpp>

#include <cstdint>
#include <memory>
#include <optional>

namespace dflash::pipeline {

struct PipelineOptions {
    int num_slots = 2;  ///< S: rows that exist between target and drafter; slot of row i is i mod S
    std::int64_t window =
        2048;             ///< samples packed together; limiter A lets two windows and END in flight
    int num_threads = 2;  ///< size of the graph's own arena
};

/// Time the two sides spent waiting for each other since the start, in seconds.
struct PipelineStats {
    double step_waited_s = 0;  ///< next() waited for a row: the target side was slower
    double target_waited_s =
        0;  ///< rows were packed but no slot was free: the drafter side was slower
    std::int64_t rows_delivered = 0;
    std::int64_t samples_read = 0;
    std::int64_t samples_dropped = 0;
};

/// The right to one row and its slot, until destroyed or released. May be released from any thread,
/// in any order, and after the Pipeline failed; must not outlive it. Slots go back in order of
/// rows: while row i is held, row i + num_slots does not come.
class RowLease;

/// One run of the graph; not reusable. All members from the thread that runs the training loop.
class Pipeline {
  public:
    /// The stages must outlive the pipeline. Errors in stages go to `first_error` and cancel the
    /// graph; an error stored there by anyone else cancels it, too.
    Pipeline(PipelineOptions options,
             SampleSource& source,
             Encoder& encoder,
             RowPacker& packer,
             TargetStage& target,
             FirstError& first_error);
    ~Pipeline();  ///< as stop(), but swallows the error (which FirstError keeps)

    void start();

    /// The next row in order; empty when the data is used up. Blocks. Throws the run's first error.
    std::optional<RowLease> next();

    /// Asks the source to end early (rows already in flight are dropped), waits until the graph is
    /// idle and all leases are released. Throws the first error; Error{Internal} if an index that
    /// was sent did not arrive.
    void stop();

    PipelineStats stats() const;

  private:
    friend class RowLease;
    class Graph;
    std::unique_ptr<Graph> graph_;
};

class RowLease {
  public:
    RowLease(RowLease&&) noexcept;
    RowLease& operator=(RowLease&&) noexcept;
    ~RowLease();  ///< releases

    const RowPtr& row() const { return row_; }

    int slot() const { return slot_; }

    void release() noexcept;

  private:
    friend class Pipeline;
    RowLease(std::shared_ptr<void> token, RowPtr row, int slot);

    std::shared_ptr<void> token_;  // its deleter returns the slot
    RowPtr row_;
    int slot_ = -1;
};

}  // namespace dflash::pipeline
