// SPDX-License-Identifier: Apache-2.0
// Decode steps of a generator: one token for each of some slots, eagerly or from CUDA graphs.
#pragma once

#include <dflash/target/generator.hpp>
#include <dflash/tensor/step_graphs.hpp>

#include <cstdint>
#include <vector>

namespace dflash::target {

class Generator::Steps : NonCopyable {
  public:
    /// `latest`: int32 [slots + 1], the token chosen last in each slot, read at the time of a step.
    /// With `graphs`, captures them all.
    Steps(TargetModel& model, DecodeCache& cache, const at::Tensor& latest, bool graphs);

    /// Runs the latest tokens of `slots` through the target, and gives the logits of what follows,
    /// fp32 [S, V], valid until the next step.
    at::Tensor run(const std::vector<std::int32_t>& slots);

  private:
    DecodeCache& cache_;
    at::Device device_;
    tensor::StepGraphs steps_;  // of slot and length
};

}  // namespace dflash::target
