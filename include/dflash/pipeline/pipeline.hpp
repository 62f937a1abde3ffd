// SPDX-License-Identifier: Apache-2.0
// The flow graph of a run: samples -> limiter A -> encode -> sequencer -> pack -> queue -> limiter
// B -> target -> sequencer -> step -> (slot back to B). The training loop is the service of the
// last node: next() hands out rows in order, releasing a row's lease returns its slot.
#pragma once

#include <dflash/core/first_error.hpp>
#include <dflash/pipeline/pipeline_board.hpp>
#include <dflash/pipeline/stages.hpp>

#include <cstdint>
#include <memory>
#include <optional>

namespace dflash::pipeline {

struct PipelineOptions {
    /// S: rows that exist between target and drafter; slot of row i is i mod S.
    int num_slots = 2;
    /// Samples packed together, as the packer does it; two windows and END may be in flight.
    std::int64_t window = 2048;
    /// Size of the graph's own arena. One of its threads is the pipeline's, which waits for the
    /// graph and works in it; the others are TBB's.
    int num_threads = 2;
};

/// Time the two sides spent waiting for each other since the start, in seconds.
struct PipelineStats {
    /// next() waited for a row, until now: the target side was slower.
    double step_waited_s = 0;
    /// Rows were packed, no slot was free and the target stood idle: the drafter side was slower.
    /// With N replicas one idle replica counts as 1/N.
    double target_waited_s = 0;
    /// A slot was free, no row was packed and the target stood idle: the data side was slower.
    /// Replicas count as above.
    double data_waited_s = 0;
    std::int64_t rows_delivered = 0;
    /// Of rows that the target has handed on.
    std::int64_t tokens_captured = 0;
    std::int64_t samples_read = 0;
    std::int64_t samples_dropped = 0;
};

/// The right to one row and its slot, until destroyed or released. May be released from any thread,
/// in any order, and after the Pipeline failed; must not outlive it. Slots go back in order of
/// rows: while row i is held, row i + num_slots does not come.
class RowLease;

/// One run of the graph; not reusable. All members but stats() from the thread that runs the
/// training loop.
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

    /// Ends the run early: from now on no stage is called, rows in flight are dropped. Waits until
    /// the graph is idle and all leases are released, after an error not for leases. Throws the
    /// first error; Error{Internal} if an index that was sent did not arrive. next() is empty then.
    void stop();

    /// From any thread.
    PipelineStats stats() const;

    /// Where samples and rows are; from any thread.
    std::shared_ptr<const PipelineBoard> board() const;

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
