// SPDX-License-Identifier: Apache-2.0
// Decode steps of a generator: one token for each of some slots, eagerly or from CUDA graphs.
#pragma once

#include <dflash/target/generator.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace dflash::target {

/// Batch sizes that get a graph: a step of fewer sequences takes the next larger one, filled with
/// rows of nobody.
std::vector<std::int64_t> graph_sizes(std::int64_t slots);

class Generator::Steps : NonCopyable {
  public:
    /// `latest`: int32 [slots + 1], the token chosen last in each slot, read at the time of a step.
    /// With `graphs`, captures them all.
    Steps(TargetModel& model, DecodeCache& cache, at::Tensor latest, bool graphs);
    ~Steps();

    /// Runs the latest tokens of `slots` through the target, and gives the logits of what follows,
    /// fp32 [S, V], valid until the next step.
    at::Tensor run(const std::vector<std::int32_t>& slots);

  private:
    struct Graph;

    void capture(std::int64_t size);
    at::Tensor compute(const at::Tensor& input_2S);

    TargetModel& model_;
    DecodeCache& cache_;
    at::Tensor latest_;
    std::vector<std::unique_ptr<Graph>> graphs_;  // rising sizes
};

}  // namespace dflash::target
