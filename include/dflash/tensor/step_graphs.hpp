// SPDX-License-Identifier: Apache-2.0
// Steps of decoding, which do the same for every sequence, from CUDA graphs: one graph for each of
// some numbers of sequences.
//
// S sequences of a step, X integers that a step is told of each.
#pragma once

#include <dflash/core/scope.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace dflash::tensor {

/// Numbers of sequences that get a graph: a step of fewer sequences takes the next larger one,
/// filled with rows of nobody.
std::vector<std::int64_t> graph_sizes(std::int64_t slots);

/// Belongs to a worker.
class StepGraphs : NonCopyable {
  public:
    /// A step of int32 [S, X], which lies on the device. To be captured it must depend on nothing
    /// else that changes its place, and wait for nothing.
    using Compute = std::function<at::Tensor(const at::Tensor& input_SX)>;

    explicit StepGraphs(Compute compute);
    ~StepGraphs();

    /// Steps have the sizes of graph_sizes(slots) from now on, and are still computed.
    void fix_sizes(std::int64_t slots);

    /// Captures a step of each of these sizes; its rows are all `nobody_X`, on the device.
    /// Takes the memory of `before`, which must have captured, if it is given: its results then
    /// outlast steps of this, but not the other way round.
    void capture(std::int64_t slots, const at::Tensor& nobody_X, const StepGraphs* before);

    /// Rows that run() wants for a step of `count` sequences: as many, unless sizes are fixed.
    std::int64_t rows_for(std::int64_t count) const;

    /// The result of a step of a number of rows that rows_for() gave. From a graph it is valid
    /// until the next step of this; and see capture().
    at::Tensor run(const at::Tensor& input_SX);

  private:
    struct Graph;

    Compute compute_;
    std::vector<std::int64_t> sizes_;  // rising
    std::vector<std::unique_ptr<Graph>> graphs_;
};

}  // namespace dflash::tensor
