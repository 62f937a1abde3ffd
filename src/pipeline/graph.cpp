// SPDX-License-Identifier: Apache-2.0
#include "graph.hpp"

#include <dflash/core/check.hpp>

#include <algorithm>
#include <functional>
#include <oneapi/tbb/info.h>

namespace dflash::pipeline {
namespace {

std::int64_t max_samples_in_flight(const PipelineOptions& options) {
    return 2 * options.window + 1;
}

const PipelineOptions& checked(const PipelineOptions& options) {
    DFLASH_CHECK(options.num_slots >= 1 && options.window >= 1 && options.num_threads >= 1,
                 "pipeline of {} slots, windows of {} and {} threads",
                 options.num_slots,
                 options.window,
                 options.num_threads);
    return options;
}

/// A graph belongs to the arena in which it is made.
std::unique_ptr<tbb::flow::graph> make_graph_in(tbb::task_arena& arena) {
    std::unique_ptr<tbb::flow::graph> graph;
    arena.execute([&] { graph = std::make_unique<tbb::flow::graph>(); });
    return graph;
}

constexpr auto kSampleIndex = [](const EncodedSample& sample) {
    return static_cast<std::size_t>(sample.index);
};
constexpr auto kRowIndex = [](const RowPtr& row) { return static_cast<std::size_t>(row->index); };
constexpr auto kNumSamples = [](const RowPtr& row) { return row->num_samples; };

}  // namespace

Pipeline::Graph::Graph(const PipelineOptions& options,
                       SampleSource& source,
                       Encoder& encoder,
                       RowPacker& packer,
                       TargetStage& target,
                       FirstError& first_error)
    : run_(first_error, checked(options).num_slots, options.num_threads),
      slots_(options.num_slots, target.num_replicas()),
      ready_(first_error),
      in_target_(std::make_shared<RowsInFlight>(
          first_error, "the target", [this] { slots_.target_finished(); })),
      in_step_(std::make_shared<RowsInFlight>(first_error, "the step", nullptr)),
      read_sample_(run_, source),
      encode_sample_(run_, encoder),
      pack_samples_(run_, slots_, packer, max_samples_in_flight(options)),
      start_target_(run_, slots_, target, in_target_, options.num_slots),
      deliver_row_(run_, ready_, in_step_, options.num_slots),
      free_slot_(run_, slots_),
      // TBB allows as many threads as it finds cores, which may be fewer than asked for.
      thread_limit_(tbb::global_control::max_allowed_parallelism,
                    static_cast<std::size_t>(
                        std::max(options.num_threads, tbb::info::default_concurrency()))),
      // One place is reserved for the thread that waits for the graph, and works in it meanwhile:
      // so the graph moves even where TBB has no thread to spare.
      arena_(options.num_threads, /*reserved_for_masters=*/1),
      arena_threads_(arena_),
      graph_(make_graph_in(arena_)),
      samples_(*graph_, std::ref(read_sample_)),
      samples_in_flight_(*graph_, static_cast<std::size_t>(max_samples_in_flight(options))),
      encoded_(*graph_, tbb::flow::unlimited, std::ref(encode_sample_)),
      encoded_in_order_(*graph_, kSampleIndex),
      packed_(*graph_, tbb::flow::serial, std::ref(pack_samples_)),
      packed_waiting_(*graph_),
      slots_in_use_(*graph_, static_cast<std::size_t>(options.num_slots)),
      samples_brought_back_(*graph_, tbb::flow::serial, kNumSamples),
      featured_(*graph_, tbb::flow::serial, std::ref(start_target_)),
      featured_in_order_(*graph_, kRowIndex),
      stepped_(*graph_, tbb::flow::serial, std::ref(deliver_row_)),
      stepped_in_order_(*graph_, kRowIndex),
      slots_freed_(*graph_, tbb::flow::serial, std::ref(free_slot_)) {
    using tbb::flow::make_edge;
    make_edge(samples_, samples_in_flight_);
    make_edge(samples_in_flight_, encoded_);
    make_edge(encoded_, encoded_in_order_);
    make_edge(encoded_in_order_, packed_);
    // A node with output ports loses what a full limiter refuses, hence the queue.
    make_edge(tbb::flow::output_port<0>(packed_), packed_waiting_);
    make_edge(packed_waiting_, slots_in_use_);
    make_edge(slots_in_use_, featured_);
    make_edge(slots_in_use_, samples_brought_back_);
    make_edge(samples_brought_back_, samples_in_flight_.decrementer());
    make_edge(featured_, featured_in_order_);
    make_edge(featured_in_order_, stepped_);
    make_edge(stepped_, stepped_in_order_);
    make_edge(stepped_in_order_, slots_freed_);
    make_edge(slots_freed_, slots_in_use_.decrementer());

    subscription_.emplace(first_error.on_error([this] {
        graph_->cancel();
        in_target_->close();
        in_step_->close();
        ready_.wake();
    }));
}

Pipeline::Graph::~Graph() {
    finish();
    subscription_.reset();
    in_target_->close();
    in_step_->close();
    // Making edges leaves tasks behind, which a graph that never started still has; they must be
    // gone before the nodes are.
    graph_->wait_for_all();
}

void Pipeline::Graph::start() {
    DFLASH_CHECK(!waiter_.joinable() && !run_.ending, "a pipeline runs once");
    graph_->reserve_wait();
    const ScopeGuard release([this] { graph_->release_wait(); });
    waiter_ = std::thread([this] { wait_until_idle(); });
    samples_.activate();
}

std::optional<ReadyRow> Pipeline::Graph::next() {
    DFLASH_CHECK(waiter_.joinable() || run_.ending, "next() before start()");
    std::optional<ReadyRow> row = ready_.pop();
    run_.first_error.rethrow_if_failed();
    if (row) {
        run_.board->slot_of(row->row->index).set("in the step", row->row->index);
    }
    return row;
}

void Pipeline::Graph::stop() {
    finish();
    run_.first_error.rethrow_if_failed();
}

void Pipeline::Graph::finish() noexcept {
    run_.ending.store(true, std::memory_order_release);
    ready_.close();
    if (waiter_.joinable()) {
        waiter_.join();
    }
}

void Pipeline::Graph::wait_until_idle() noexcept {
    arena_threads_.adopt_this_thread();
    run_.guarded([this] {
        graph_->wait_for_all();
        if (!run_.first_error.failed()) {
            check_all_arrived(run_.board->arrivals);
        }
    });
}

PipelineStats Pipeline::Graph::stats() const {
    return {.step_waited_s = ready_.pop_waited_s(),
            .target_waited_s = slots_.target_waited_s(),
            .data_waited_s = slots_.data_waited_s(),
            .rows_delivered = ready_.num_popped(),
            .tokens_captured = run_.tokens_captured,
            .samples_read = run_.samples_read,
            .samples_dropped = run_.samples_dropped};
}

}  // namespace dflash::pipeline
