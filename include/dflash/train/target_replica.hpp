// SPDX-License-Identifier: Apache-2.0
// A target on one worker: runs rows and leaves the features of the tapped layers in a slot.
#pragma once

#include <dflash/data/packed_row.hpp>
#include <dflash/gpu/worker.hpp>
#include <dflash/pipeline/stages.hpp>
#include <dflash/target/target_model.hpp>
#include <dflash/train/feature_slots.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace dflash::train {

class FeatureStaging;

class TargetReplica {
  public:
    /// `taps` in the order of the drafter's features: plane k holds layer taps[k].
    TargetReplica(gpu::Worker& worker,
                  std::unique_ptr<target::TargetModel> model,
                  std::vector<std::int64_t> taps);
    ~TargetReplica();

    /// To be called on the worker before the first row for a drafter's device: where that is
    /// another GPU, makes planes for rows of up to `max_tokens` tokens, from which a stream of
    /// their own carries the features over while the forward goes on.
    void reach(const gpu::Device& drafter, std::int64_t max_tokens);

    /// Queues the forward of a row; `done` is called on the worker once the features are in the
    /// slot or, on a GPU, ordered to be there before slot.written. Returns at once.
    void start(pipeline::RowPtr row, FeatureSlot& slot, std::function<void()> done);

    /// The same on the worker's own thread, for evaluation.
    void capture(const data::PackedRow& row, FeatureSlot& slot);

    gpu::Worker& worker() { return worker_; }

    target::TargetModel& model() { return *model_; }

    const std::vector<std::int64_t>& taps() const { return taps_; }

  private:
    gpu::Worker& worker_;
    std::unique_ptr<target::TargetModel> model_;
    std::vector<std::int64_t> taps_;
    std::unique_ptr<FeatureStaging> staging_;
};

}  // namespace dflash::train
