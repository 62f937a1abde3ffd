// SPDX-License-Identifier: Apache-2.0
#include "feature_staging.hpp"

#include <dflash/core/log.hpp>
#include <dflash/gpu/peer_copy.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/target_replica.hpp>
#include <dflash/train/torch_worker.hpp>

#include <algorithm>
#include <utility>

namespace dflash::train {

TargetReplica::TargetReplica(gpu::Worker& worker,
                             std::unique_ptr<target::TargetModel> model,
                             std::vector<std::int64_t> taps)
    : worker_(worker), model_(std::move(model)), taps_(std::move(taps)) {}

TargetReplica::~TargetReplica() = default;

void TargetReplica::reach(const gpu::Device& drafter, std::int64_t max_tokens) {
    const gpu::Device& own = worker_.device();
    if (!own.is_cuda() || drafter.ordinal == own.ordinal) {
        return;
    }
    if (!gpu::enable_peer_access(drafter.ordinal)) {
        log_warning("{} cannot write to the memory of {}: features go through the host, slower",
                    own.name,
                    drafter.name);
    }
    if (!staging_) {
        staging_ = std::make_unique<FeatureStaging>(tensor::torch_device(own),
                                                    static_cast<std::int64_t>(taps_.size()),
                                                    max_tokens,
                                                    model_->config().hidden_size);
    }
}

void TargetReplica::start(pipeline::RowPtr row, FeatureSlot& slot, std::function<void()> done) {
    const gpu::TaskName name("capture row", row->index);
    worker_.post(name, [this, row = std::move(row), &slot, done = std::move(done)] {
        capture(*row, slot);
        done();
    });
}

void TargetReplica::capture(const data::PackedRow& row, FeatureSlot& slot) {
    if (row.empty()) {
        return;
    }
    const at::Tensor planes_KTH = slot.row_planes(row.num_tokens());
    std::vector<std::int32_t> starts;
    for (const data::Document& document : row.documents) {
        starts.push_back(document.begin);
    }
    starts.push_back(static_cast<std::int32_t>(row.num_tokens()));

    // On the slot's own GPU the features are written in place; a slot on another GPU gets them from
    // the staging planes.
    const gpu::StreamView compute = current_stream(worker_.device());
    FeatureStaging* const staging =
        planes_KTH.device() == tensor::torch_device(worker_.device()) ? nullptr : staging_.get();
    const gpu::StreamView writing = staging == nullptr ? compute : staging->copies();
    slot.read.wait(writing);
    const auto keep_plane = [&](std::int64_t layer, const at::Tensor& residual_TH) {
        const auto k = std::find(taps_.begin(), taps_.end(), layer) - taps_.begin();
        const at::Tensor plane_TH = planes_KTH.select(0, k);
        if (staging == nullptr) {
            plane_TH.copy_(residual_TH, /*non_blocking=*/true);
        } else {
            staging->send(static_cast<std::size_t>(k), residual_TH, plane_TH, compute);
        }
    };
    model_->capture(
        {.tokens = row.tokens, .positions = row.positions, .starts = starts}, taps_, keep_plane);
    slot.written.record(writing);
}

}  // namespace dflash::train
