// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/train/target_replica.hpp>
#include <dflash/train/torch_worker.hpp>

#include <algorithm>
#include <utility>

namespace dflash::train {

TargetReplica::TargetReplica(gpu::Worker& worker,
                             std::unique_ptr<target::TargetModel> model,
                             std::vector<std::int64_t> taps)
    : worker_(worker), model_(std::move(model)), taps_(std::move(taps)) {}

void TargetReplica::start(pipeline::RowPtr row, FeatureSlot& slot, std::function<void()> done) {
    worker_.post([this, row = std::move(row), &slot, done = std::move(done)] {
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

    slot.read.wait(current_stream(worker_.device()));
    model_->capture(
        {.tokens = row.tokens, .positions = row.positions, .starts = starts},
        taps_,
        [&](std::int64_t layer, const at::Tensor& residual_TH) {
            const auto tap = std::find(taps_.begin(), taps_.end(), layer);
            planes_KTH.select(0, tap - taps_.begin()).copy_(residual_TH, /*non_blocking=*/true);
        });
    slot.written.record(current_stream(worker_.device()));
    tokens_done_.fetch_add(row.num_tokens(), std::memory_order_relaxed);
}

}  // namespace dflash::train
