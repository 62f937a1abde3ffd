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
#include <string>
#include <vector>

namespace dflash::train {

/// What one row of a step left behind.
struct RowValues {
    double loss = 0;             ///< sum of w m CE
    double correct = 0;          ///< right labels
    double largest_feature = 0;  ///< largest magnitude in its features; NaN if any is
    double gradient_probe = 0;   ///< sum of hidden_norm's gradient over this drafter's rows of the
                                 ///< step up to this one: nearly every backward path ends there
};

/// A step as one drafter knows it; host values.
struct StepValues {
    double norm = 0;  ///< of the whole step's normalised gradient before clipping, the same on all
                      ///< drafters. Not finite: the step was skipped, by all of them
    std::vector<RowValues> rows;      ///< this drafter's, in order
    std::vector<double> piece_norms;  ///< of the reduced gradient sums, by AdamW::pieces()
};

/// They are on their way to the host.
class StepResult {
  public:
    /// Waits for the device; on the drafter's worker, like the destructor.
    StepValues read() const;

  private:
    friend class DrafterRank;
    at::Tensor values_;    // host fp64, page-locked for a GPU: norm, rows x RowValues, piece norms
    gpu::Signal arrived_;  // recorded behind the copy into values_
    std::int64_t num_rows_ = 0;
};

/// All members but the constructor run on the worker.
class DrafterRank {
  public:
    DrafterRank(gpu::Worker& worker, int rank, comm::ProcessGroup& group);

    /// Builds the model, without weights.
    void build(const model::DraftConfig& config,
               model::FrozenEnds ends,
               const AdamWOptions& options,
               const model::LossWeights& loss_weights,
               model::DrafterPaths paths,
               std::int64_t recompute_layers = 0,
               model::HeadPrecision head_precision = model::HeadPrecision::Compute);

    /// Starts from fp32 weights on the host (the layout of model::DraftWeights), the same for all
    /// ranks.
    void set_weights(const at::Tensor& flat_fp32);

    /// Continues from saved optimizer state.
    void set_state(const OptimizerState& state);

    /// An evaluation and a whole step with that row in every part but the result: weights, moments
    /// and sums are undefined afterwards. Makes libraries load and allocate what rows of that size
    /// need. All ranks do it at the same time.
    void warm_up(const data::PackedRow& row, FeatureSlot& slot);

    /// Forward, backward and evaluation of that row with random weights and features, like those of
    /// training: what is timed in it is timed with numbers that cost the chip as much power.
    /// Weights and gradient sums are undefined afterwards. A rank alone may do it; waits for the
    /// device.
    void rehearse(const data::PackedRow& row, FeatureSlot& slot);

    int rank() const { return rank_; }

    /// Meets the other drafters; all do it at the same time, once.
    void join() { group_.join(rank_); }

    /// A slot on this drafter's device.
    FeatureSlot make_slot(std::int64_t num_features,
                          std::int64_t max_tokens,
                          std::int64_t hidden_size) const;

    /// Forward, loss and backward of a row; records slot.read.
    void add_row(const data::PackedRow& row, FeatureSlot& slot);

    /// What a row adds to the divisor of its step. On any thread, after build().
    double divisor_of(const data::PackedRow& row) const {
        return model::loss_divisor(drafter_->loss_weights(), row);
    }

    /// Reduces the gradient sums over all drafters, takes the optimizer's step with gradients /
    /// divisor, and starts the next step's sums. Waits for the other drafters. If a loss or the
    /// gradient of any drafter is not finite, all of them skip the step: what they hold stays as
    /// it is, bit for bit.
    StepResult finish_step(double learning_rate, double divisor);

    /// Names of the weights that StepValues::piece_norms belong to.
    std::vector<std::string> piece_names() const;

    struct Prediction {
        std::vector<TokenId> argmax;  ///< of every head row
        double loss_sum = 0;
    };

    /// Forward of a held-out row. Waits for the device.
    Prediction predict(const data::PackedRow& row, FeatureSlot& slot);

    /// Copies the optimizer's state into tensors on the host, asynchronously where they are
    /// page-locked, and waits for the device.
    void snapshot(OptimizerState& into);

    gpu::Worker& worker() { return worker_; }

    model::Drafter& drafter() { return *drafter_; }

  private:
    gpu::Worker& worker_;
    int rank_;
    comm::ProcessGroup& group_;
    std::unique_ptr<model::Drafter> drafter_;
    std::unique_ptr<AdamW> optimizer_;
    std::int64_t probe_weight_ = 0;       // index of hidden_norm
    std::vector<at::Tensor> row_values_;  // fp64 [4] on the device, in the order of RowValues: of
                                          // this step's rows so far
};

}  // namespace dflash::train
