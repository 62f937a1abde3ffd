// SPDX-License-Identifier: Apache-2.0
// What the graph's nodes do. Each body guards the stage that it calls, so no exception passes
// through TBB, and none waits.
//
// A run that ends early, or has failed, starts nothing any more; what is on its way travels on,
// empty, so that every index still arrives.
#pragma once

#include "board.hpp"
#include "ready_rows.hpp"
#include "rows_in_flight.hpp"
#include "slot_clock.hpp"

#include <dflash/core/first_error.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/pipeline/stages.hpp>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <oneapi/tbb/flow_graph.h>
#include <tuple>
#include <utility>

namespace dflash::pipeline {

/// What the bodies of one run share.
struct RunState : NonCopyable {
    RunState(FirstError& error, int num_slots, int num_threads)
        : first_error(error), board(std::make_shared<Board>(num_slots, num_threads)) {}

    FirstError& first_error;
    const std::shared_ptr<Board> board;
    std::atomic<bool> ending = false;            ///< stop() was called
    std::atomic<std::int64_t> samples_read = 0;  ///< without END
    std::atomic<std::int64_t> samples_dropped = 0;
    std::atomic<std::int64_t> tokens_captured = 0;

    /// Whether bodies pass messages on without calling their stage.
    bool skips() const { return ending.load(std::memory_order_acquire) || first_error.failed(); }

    /// Runs `action`; an exception goes to FirstError. Returns whether there was none.
    template <class Action>
    bool guarded(Action&& action) noexcept {
        try {
            std::forward<Action>(action)();
            return true;
        } catch (...) {
            first_error.store(std::current_exception());
            return false;
        }
    }
};

/// A sample on its way to the packer; none if the run ends or has failed.
struct EncodedSample {
    std::int64_t index = 0;
    bool end = false;
    std::shared_ptr<data::Sample> sample;  // moved out of by the packer
};

/// Body of the input node: the next place in the order, then END once.
class ReadSample : NonCopyable {
  public:
    ReadSample(RunState& run, SampleSource& source) : run_(run), source_(source) {}

    data::SampleRef operator()(tbb::flow_control& control);

  private:
    RunState& run_;
    SampleSource& source_;
    std::int64_t next_index_ = 0;
    bool ended_ = false;
};

/// Concurrent.
class EncodeSample : NonCopyable {
  public:
    EncodeSample(RunState& run, Encoder& encoder) : run_(run), encoder_(encoder) {}

    EncodedSample operator()(const data::SampleRef& ref) const;

  private:
    RunState& run_;
    Encoder& encoder_;
};

/// Serial, in order of samples. Each sample goes back to limiter A with exactly one row, also when
/// its window has nothing usable or is dropped.
class PackSamples : NonCopyable {
  public:
    using OutputPorts =
        tbb::flow::multifunction_node<EncodedSample, std::tuple<RowPtr>>::output_ports_type;

    PackSamples(RunState& run, SlotClock& slots, RowPacker& packer, std::int64_t max_in_flight)
        : run_(run), slots_(slots), packer_(packer), max_in_flight_(max_in_flight) {}

    void operator()(const EncodedSample& sample, OutputPorts& ports);

  private:
    void send(data::PackedRow row, OutputPorts& ports);

    RunState& run_;
    SlotClock& slots_;
    RowPacker& packer_;
    const std::int64_t max_in_flight_;
    std::int64_t next_sample_ = 0;
    std::int64_t next_row_ = 0;
    std::int64_t unreturned_ = 0;  // samples taken, END included, that no row has brought back
    bool ended_ = false;
};

/// Serial, in order of rows: the row has its slot.
class StartTarget : NonCopyable {
  public:
    StartTarget(RunState& run,
                SlotClock& slots,
                TargetStage& target,
                std::shared_ptr<RowsInFlight> in_target,
                int num_slots)
        : run_(run),
          slots_(slots),
          target_(target),
          in_target_(std::move(in_target)),
          num_slots_(num_slots) {}

    void operator()(const RowPtr& row, RowGateway& gateway);

  private:
    RunState& run_;
    SlotClock& slots_;
    TargetStage& target_;
    std::shared_ptr<RowsInFlight> in_target_;
    const int num_slots_;
};

/// Serial, in order of rows: hands a row to the training loop.
class DeliverRow : NonCopyable {
  public:
    DeliverRow(RunState& run,
               ReadyRows& ready,
               std::shared_ptr<RowsInFlight> in_step,
               int num_slots)
        : run_(run), ready_(ready), in_step_(std::move(in_step)), num_slots_(num_slots) {}

    void operator()(const RowPtr& row, RowGateway& gateway);

  private:
    RunState& run_;
    ReadyRows& ready_;
    std::shared_ptr<RowsInFlight> in_step_;
    const int num_slots_;
    std::int64_t next_row_ = 0;
};

/// Serial, in order of rows: the slot is free again.
class FreeSlot : NonCopyable {
  public:
    FreeSlot(RunState& run, SlotClock& slots) : run_(run), slots_(slots) {}

    tbb::flow::continue_msg operator()(const RowPtr& row);

  private:
    RunState& run_;
    SlotClock& slots_;
};

}  // namespace dflash::pipeline
