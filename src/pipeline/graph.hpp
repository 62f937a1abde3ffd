// SPDX-License-Identifier: Apache-2.0
// The flow graph of a run. Nodes are declared in the order in which data flows and named for what
// comes out of them; all edges stand together in the constructor.
//
// Two limiters. `samples_in_flight_` counts samples (two windows and END): one goes back when the
// row that carries it takes a slot, so packing runs at most a window ahead of the slots.
// `slots_in_use_` counts rows between target and drafter; slots go back in order of rows, so with
// S slots the rows that hold one are S consecutive rows at most, and row i may use slot i mod S.
//
// A failure anywhere cancels the graph, wakes the training loop and takes back all reservations,
// through the subscription to FirstError. Messages are lost from then on, although try_put reports
// success, so nothing that must happen hangs on a message.
#pragma once

#include "arena_threads.hpp"
#include "bodies.hpp"

#include <dflash/pipeline/pipeline.hpp>

#include <memory>
#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>
#include <optional>
#include <thread>
#include <tuple>

namespace dflash::pipeline {

class Pipeline::Graph : NonCopyable {
  public:
    Graph(const PipelineOptions& options,
          SampleSource& source,
          Encoder& encoder,
          RowPacker& packer,
          TargetStage& target,
          FirstError& first_error);
    ~Graph();

    void start();
    std::optional<ReadyRow> next();

    void stop();
    PipelineStats stats() const;

    std::shared_ptr<const PipelineBoard> board() const { return run_.board; }

  private:
    /// Lets nothing start any more and waits until the graph is idle.
    void finish() noexcept;
    void wait_until_idle() noexcept;

    RunState run_;
    SlotClock slots_;
    ReadyRows ready_;
    std::shared_ptr<RowsInFlight> in_target_;
    std::shared_ptr<RowsInFlight> in_step_;

    ReadSample read_sample_;
    EncodeSample encode_sample_;
    PackSamples pack_samples_;
    StartTarget start_target_;
    DeliverRow deliver_row_;
    FreeSlot free_slot_;

    tbb::global_control thread_limit_;
    tbb::task_arena arena_;
    ArenaThreads arena_threads_;
    std::unique_ptr<tbb::flow::graph> graph_;

    tbb::flow::input_node<data::SampleRef> samples_;
    tbb::flow::limiter_node<data::SampleRef, std::int64_t> samples_in_flight_;
    tbb::flow::function_node<data::SampleRef, EncodedSample> encoded_;
    tbb::flow::sequencer_node<EncodedSample> encoded_in_order_;
    tbb::flow::multifunction_node<EncodedSample, std::tuple<RowPtr>> packed_;
    tbb::flow::queue_node<RowPtr> packed_waiting_;
    tbb::flow::limiter_node<RowPtr> slots_in_use_;
    tbb::flow::function_node<RowPtr, std::int64_t> samples_brought_back_;
    RowNode featured_;
    tbb::flow::sequencer_node<RowPtr> featured_in_order_;
    RowNode stepped_;
    tbb::flow::sequencer_node<RowPtr> stepped_in_order_;
    tbb::flow::function_node<RowPtr, tbb::flow::continue_msg> slots_freed_;

    std::thread waiter_;
    std::optional<FirstError::Subscription> subscription_;
};

}  // namespace dflash::pipeline
