// SPDX-License-Identifier: Apache-2.0
#include "tensor_buffer.hpp"

#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/drafter_rank.hpp>
#include <dflash/train/torch_worker.hpp>

#include <utility>

namespace dflash::train {

DrafterRank::DrafterRank(gpu::Worker& worker, int rank, comm::ProcessGroup& group)
    : worker_(worker), rank_(rank), group_(group) {}

void DrafterRank::build(const model::DraftConfig& config,
                        model::FrozenEnds ends,
                        const AdamWOptions& options,
                        model::DrafterPaths paths) {
    const at::Device device = tensor::torch_device(worker_.device());
    drafter_ = std::make_unique<model::Drafter>(
        config, std::move(ends), device, compute_dtype(worker_.device()), std::move(paths));
    optimizer_ = std::make_unique<AdamW>(drafter_->weights(), options);
    loss_sum_ = at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
    correct_sum_ = at::zeros({}, at::TensorOptions(device).dtype(at::kLong));
}

void DrafterRank::set_weights(const at::Tensor& flat_fp32) {
    const at::Tensor zeros = at::zeros_like(flat_fp32);
    set_state({flat_fp32, zeros, zeros}, 0);
}

void DrafterRank::set_state(const OptimizerState& state, std::int64_t steps) {
    optimizer_->set_master(state.master);
    optimizer_->set_moments(state.exp_avg, state.exp_avg_sq, steps);
    drafter_->weights().gradient_flat().zero_();
    loss_sum_.zero_();
    correct_sum_.zero_();
}

void DrafterRank::warm_up(const data::PackedRow& row, FeatureSlot& slot) {
    add_row(row, slot);
    finish_step(/*learning_rate=*/0, row.blocks.weight_sum).arrived.synchronize();
}

FeatureSlot DrafterRank::make_slot(std::int64_t num_features,
                                   std::int64_t max_tokens,
                                   std::int64_t hidden_size) const {
    const auto options = at::TensorOptions(tensor::torch_device(worker_.device()))
                             .dtype(compute_dtype(worker_.device()));
    FeatureSlot slot;
    slot.planes_KTH = at::empty({num_features, max_tokens, hidden_size}, options);
    return slot;
}

void DrafterRank::add_row(const data::PackedRow& row, FeatureSlot& slot) {
    const gpu::StreamView stream = current_stream(worker_.device());
    slot.written.wait(stream);
    const model::RowSums sums = drafter_->forward_backward(row, slot.row_planes(row.num_tokens()));
    loss_sum_.add_(sums.loss);
    correct_sum_.add_(sums.correct.sum());
    slot.read.record(stream);
}

StepResult DrafterRank::finish_step(double learning_rate, double weight_sum) {
    const at::Tensor gradients = drafter_->weights().gradient_flat();
    TensorBuffer buffer(gradients);
    group_.all_reduce(rank_, buffer, current_stream(worker_.device()));
    // A step without a single label has nothing to divide by, and its gradients are zeros.
    const double scale = weight_sum > 0 ? 1 / weight_sum : 0;
    const at::Tensor norm = optimizer_->step(gradients, scale, learning_rate);

    StepResult result;
    const bool page_locked = worker_.device().is_cuda();
    result.values =
        at::empty({3}, at::TensorOptions().dtype(at::kDouble).pinned_memory(page_locked));
    result.values.copy_(at::stack({loss_sum_, correct_sum_.to(at::kDouble), norm}),
                        /*non_blocking=*/true);
    result.arrived.record(current_stream(worker_.device()));

    gradients.zero_();
    loss_sum_.zero_();
    correct_sum_.zero_();
    return result;
}

DrafterRank::Prediction DrafterRank::predict(const data::PackedRow& row, FeatureSlot& slot) {
    const gpu::StreamView stream = current_stream(worker_.device());
    slot.written.wait(stream);
    at::Tensor argmax_R;
    const model::RowSums sums =
        drafter_->evaluate(row, slot.row_planes(row.num_tokens()), &argmax_R);
    slot.read.record(stream);
    Prediction prediction;
    const at::Tensor on_host = argmax_R.to(at::kCPU, at::kInt).contiguous();
    prediction.argmax.assign(on_host.data_ptr<std::int32_t>(),
                             on_host.data_ptr<std::int32_t>() + on_host.numel());
    prediction.loss_sum = sums.loss.item<double>();
    return prediction;
}

OptimizerState DrafterRank::optimizer_state() {
    const auto copy = [](const at::Tensor& tensor) {
        return tensor.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
    };
    return {
        copy(optimizer_->master()), copy(optimizer_->exp_avg()), copy(optimizer_->exp_avg_sq())};
}

}  // namespace dflash::train
