// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/tensor/step_graphs.hpp>

#include <ATen/cuda/CUDAGraph.h>
#include <algorithm>
#include <utility>

namespace dflash::tensor {

struct StepGraphs::Graph {
    at::Tensor input_SX;
    at::Tensor result;  // in the graphs' own memory
    at::cuda::CUDAGraph graph;

    std::int64_t size() const { return input_SX.size(0); }
};

std::vector<std::int64_t> graph_sizes(std::int64_t slots) {
    // Doubling up to 16, then by 16, then by about a quarter.
    const auto next = [](std::int64_t size) {
        return size < 16 ? 2 * size : size + std::max<std::int64_t>(16, size / 64 * 16);
    };
    std::vector<std::int64_t> sizes;
    for (std::int64_t size = 1; size < slots; size = next(size)) {
        sizes.push_back(size);
    }
    sizes.push_back(slots);
    return sizes;
}

StepGraphs::StepGraphs(Compute compute) : compute_(std::move(compute)) {}

StepGraphs::~StepGraphs() = default;

void StepGraphs::fix_sizes(std::int64_t slots) {
    DFLASH_CHECK(graphs_.empty(), "sizes of steps that were captured");
    sizes_ = graph_sizes(slots);
}

void StepGraphs::capture(std::int64_t slots, const at::Tensor& nobody_X, const StepGraphs* before) {
    fix_sizes(slots);
    // Graphs share their memory: they never run at the same time, and what one gives is used up
    // before the next step. Results stay taken, so that no later graph writes into them.
    const bool joins = before != nullptr && !before->graphs_.empty();
    const at::cuda::MempoolId_t pool =
        joins ? before->graphs_.front()->graph.pool() : at::cuda::graph_pool_handle();
    // The largest first: the smaller ones find room in the memory that it has left.
    for (auto size = sizes_.rbegin(); size != sizes_.rend(); ++size) {
        auto graph = std::make_unique<Graph>();
        graph->input_SX = nobody_X.unsqueeze(0).repeat({*size, 1});
        // Libraries load and allocate on their first call, which a capture must not.
        compute_(graph->input_SX);
        // Thread-local: what other workers do meanwhile is no part of it and does not end it.
        graph->graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
        graph->result = compute_(graph->input_SX);
        graph->graph.capture_end();
        graphs_.push_back(std::move(graph));
    }
}

std::int64_t StepGraphs::rows_for(std::int64_t count) const {
    const auto size = std::lower_bound(sizes_.begin(), sizes_.end(), count);
    return size == sizes_.end() ? count : *size;
}

at::Tensor StepGraphs::run(const at::Tensor& input_SX) {
    if (graphs_.empty()) {
        return compute_(input_SX);
    }
    const auto graph = std::find_if(graphs_.begin(), graphs_.end(), [&](const auto& g) {
        return g->size() == input_SX.size(0);
    });
    DFLASH_CHECK(
        graph != graphs_.end(), "a step of {} rows, for which there is no graph", input_SX.size(0));
    (*graph)->input_SX.copy_(input_SX);
    (*graph)->graph.replay();
    return (*graph)->result;
}

}  // namespace dflash::tensor
