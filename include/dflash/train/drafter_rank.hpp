// SPDX-License-Identifier: Apache-2.0
// One drafter of the data-parallel group, on its worker: model, optimizer, and the sums of the step
// under way.
#pragma once

#include <dflash/comm/process_group.hpp>
#include <dflash/gpu/worker.hpp>
#include <dflash/model/drafter.hpp>
#include <dflash/train/checkpoint.hpp>
#include <dflash/train/feature_slots.hpp>
#include <dflash/train/optimizer.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <memory>
#include <vector>

namespace dflash::train {

/// Results of a step as one drafter has them, on their way to the host.
struct StepResult {
    at::Tensor values;  ///< host fp64 [3], page-locked for a GPU: loss sum and right labels of this
                        ///< drafter's rows, and the norm of the whole step's normalised gradient
                        ///< before clipping, the same on all drafters
    gpu::Signal arrived;  ///< recorded behind the copy into `values`
};

/// All members but the constructor run on the worker.
class DrafterRank {
  public:
    DrafterRank(gpu::Worker& worker, int rank, comm::ProcessGroup& group);

    /// Builds the model, without weights.
    void build(const model::DraftConfig& config,
               model::FrozenEnds ends,
               const AdamWOptions& options,
               model::DrafterPaths paths);

    /// Starts from fp32 weights on the host (the layout of model::DraftWeights), the same for all
    /// ranks.
    void set_weights(const at::Tensor& flat_fp32);

    /// Continues from saved optimizer state.
    void set_state(const OptimizerState& state, std::int64_t steps);

    /// A whole step with that row in every part but the result: weights, moments and sums are
    /// undefined afterwards. Makes libraries load and allocate what steps of that size need. All
    /// ranks do it at the same time.
    void warm_up(const data::PackedRow& row, FeatureSlot& slot);

    int rank() const { return rank_; }

    /// Meets the other drafters; all do it at the same time, once.
    void join() { group_.join(rank_); }

    /// A slot on this drafter's device.
    FeatureSlot make_slot(std::int64_t num_features,
                          std::int64_t max_tokens,
                          std::int64_t hidden_size) const;

    /// Forward, loss and backward of a row; records slot.read.
    void add_row(const data::PackedRow& row, FeatureSlot& slot);

    /// Reduces the gradient sums over all drafters, takes the optimizer's step with gradients /
    /// weight_sum, and starts the next step's sums. Waits for the other drafters.
    StepResult finish_step(double learning_rate, double weight_sum);

    struct Prediction {
        std::vector<TokenId> argmax;  ///< of every head row
        double loss_sum = 0;
    };

    /// Forward of a held-out row. Waits for the device.
    Prediction predict(const data::PackedRow& row, FeatureSlot& slot);

    /// Copies of the optimizer's tensors on the host. Waits for the device.
    OptimizerState optimizer_state();

    gpu::Worker& worker() { return worker_; }

    model::Drafter& drafter() { return *drafter_; }

  private:
    gpu::Worker& worker_;
    int rank_;
    comm::ProcessGroup& group_;
    std::unique_ptr<model::Drafter> drafter_;
    std::unique_ptr<AdamW> optimizer_;
    at::Tensor loss_sum_;  // fp64 scalar on the device: sum of w m CE over this step's rows so far
    at::Tensor correct_sum_;  // int64 scalar on the device
};

}  // namespace dflash::train
