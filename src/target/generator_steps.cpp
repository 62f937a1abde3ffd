// SPDX-License-Identifier: Apache-2.0
// Legend: S sequences of a step, V vocabulary.
#include "generator_steps.hpp"

#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>

#include <ATen/cuda/CUDAGraph.h>
#include <algorithm>
#include <span>

namespace dflash::target {

struct Generator::Steps::Graph {
    std::int64_t size = 0;
    at::Tensor input_2S;   // slots, then lengths
    at::Tensor logits_SV;  // in the graphs' own memory
    at::cuda::CUDAGraph graph;
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

Generator::Steps::Steps(TargetModel& model, DecodeCache& cache, at::Tensor latest, bool graphs)
    : model_(model), cache_(cache), latest_(std::move(latest)) {
    if (graphs) {
        // The largest first: the smaller ones find room in the memory that it has left.
        const std::vector<std::int64_t> sizes = graph_sizes(cache.slots());
        for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
            capture(*size);
        }
        std::reverse(graphs_.begin(), graphs_.end());
    }
}

Generator::Steps::~Steps() = default;

at::Tensor Generator::Steps::compute(const at::Tensor& input_2S) {
    const at::Tensor slots_S = input_2S[0];
    const at::Tensor residual_SH = model_.decode(cache_,
                                                 {.tokens_S = latest_.index_select(0, slots_S),
                                                  .slots_S = slots_S,
                                                  .lengths_S = input_2S[1]});
    return model_.logits(residual_SH);
}

// All sequences of the warm-up and of the capture are nobody's.
void Generator::Steps::capture(std::int64_t size) {
    auto graph = std::make_unique<Graph>();
    graph->size = size;
    graph->input_2S = at::zeros({2, size}, latest_.options());
    graph->input_2S[0].fill_(cache_.slots());
    // Libraries load and allocate on their first call, which a capture must not.
    compute(graph->input_2S);
    // Graphs share their memory: they never run at the same time, and what one gives is used up
    // before the next step.
    const at::MempoolId_t pool =
        graphs_.empty() ? at::cuda::graph_pool_handle() : graphs_.front()->graph.pool();
    // Thread-local: what other workers do meanwhile is no part of it and does not end it.
    graph->graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    graph->logits_SV = compute(graph->input_2S);
    graph->graph.capture_end();
    graphs_.push_back(std::move(graph));
}

at::Tensor Generator::Steps::run(const std::vector<std::int32_t>& slots) {
    const auto count = static_cast<std::int64_t>(slots.size());
    const auto graph = std::find_if(
        graphs_.begin(), graphs_.end(), [&](const auto& g) { return g->size >= count; });
    const std::int64_t size = graph == graphs_.end() ? count : (*graph)->size;

    std::vector<std::int32_t> input(static_cast<std::size_t>(2 * size));
    std::fill_n(input.begin(), size, static_cast<std::int32_t>(cache_.slots()));
    for (std::size_t s = 0; s < slots.size(); ++s) {
        input[s] = slots[s];
        input[static_cast<std::size_t>(size) + s] =
            static_cast<std::int32_t>(cache_.length(slots[s]));
    }
    const at::Tensor input_2S =
        tensor::upload(std::span<const std::int32_t>(input), latest_.device()).view({2, size});
    at::Tensor logits_SV;
    if (graph == graphs_.end()) {
        logits_SV = compute(input_2S);
    } else {
        (*graph)->input_2S.copy_(input_2S);
        (*graph)->graph.replay();
        logits_SV = (*graph)->logits_SV.narrow(0, 0, count);
    }
    for (const std::int32_t slot : slots) {
        cache_.note_appended(slot, 1);
    }
    return logits_SV;
}

}  // namespace dflash::target
