// SPDX-License-Identifier: Apache-2.0
#include "tensor_buffer.hpp"

#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/drafter_rank.hpp>
#include <dflash/train/torch_worker.hpp>

#include <cmath>
#include <iterator>
#include <utility>

namespace dflash::train {
namespace {

constexpr std::int64_t kValuesOfRow = 4;  // members of RowValues

}  // namespace

StepValues StepResult::read() const {
    arrived_.synchronize();
    const double* next = values_.data_ptr<double>();
    const double* const end = next + values_.numel();
    StepValues values;
    values.norm = *next++;
    for (std::int64_t i = 0; i < num_rows_; ++i) {
        values.rows.push_back({next[0], next[1], next[2], next[3]});
        next += kValuesOfRow;
    }
    values.piece_norms.assign(next, end);
    return values;
}

DrafterRank::DrafterRank(gpu::Worker& worker, int rank, comm::ProcessGroup& group)
    : worker_(worker), rank_(rank), group_(group) {}

void DrafterRank::build(const model::DraftConfig& config,
                        model::FrozenEnds ends,
                        const AdamWOptions& options,
                        const model::LossWeights& loss_weights,
                        model::DrafterPaths paths,
                        std::int64_t recompute_layers,
                        model::HeadPrecision head_precision) {
    const at::Device device = tensor::torch_device(worker_.device());
    const kernels::FindKernel find_kernel = paths.find_kernel;
    drafter_ = std::make_unique<model::Drafter>(config,
                                                std::move(ends),
                                                device,
                                                compute_dtype(worker_.device()),
                                                std::move(paths),
                                                model::DraftWeights::Use::Training,
                                                loss_weights,
                                                recompute_layers,
                                                head_precision);
    probe_weight_ = drafter_->weights().index("hidden_norm.weight");
    optimizer_ = std::make_unique<AdamW>(drafter_->weights(), options, find_kernel);
}

void DrafterRank::set_weights(const at::Tensor& flat_fp32) {
    const at::Tensor zeros = at::zeros_like(flat_fp32);
    set_state({flat_fp32, zeros, zeros, /*steps=*/0});
}

void DrafterRank::set_state(const OptimizerState& state) {
    optimizer_->set_master(state.master);
    optimizer_->set_moments(state.exp_avg, state.exp_avg_sq, state.steps);
    drafter_->weights().gradient_flat().zero_();
    row_values_.clear();
}

void DrafterRank::warm_up(const data::PackedRow& row, FeatureSlot& slot) {
    add_row(row, slot);
    finish_step(/*learning_rate=*/0, divisor_of(row)).read();
    predict(row, slot);  // last, in the memory that the step has taken
}

void DrafterRank::rehearse(const data::PackedRow& row, FeatureSlot& slot) {
    model::DraftWeights& weights = drafter_->weights();
    for (std::int64_t i = 0; i < std::ssize(weights.specs()); ++i) {
        const at::Tensor weight = weights.weight(i);
        if (weight.dim() == 1) {
            weight.fill_(1);
        } else {
            weight.normal_(0, drafter_->config().initializer_range);
        }
    }
    const gpu::StreamView stream = current_stream(worker_.device());
    slot.written.wait(stream);
    slot.read.wait(stream);
    const at::Tensor planes_KTH = slot.row_planes(row.num_tokens());
    planes_KTH.normal_();
    drafter_->forward_backward(row, planes_KTH);
    // Where training's products with the head are made in 8 bits, only this makes them in bf16.
    drafter_->evaluate(row, planes_KTH);
    slot.read.record(stream);
    synchronize_stream(worker_.device());
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
    const at::Tensor planes_KTH = slot.row_planes(row.num_tokens());
    const model::RowSums sums = drafter_->forward_backward(row, planes_KTH);
    // Read for every row, one pass over memory beside the many of the row itself: when the host
    // learns of a bad step the slot holds other features already.
    const at::Tensor largest_feature = at::linalg_vector_norm(planes_KTH, INFINITY);
    slot.read.record(stream);
    const at::Tensor probe = drafter_->weights().gradient(probe_weight_).sum();
    row_values_.push_back(at::stack({sums.loss,
                                     sums.correct.sum().to(at::kDouble),
                                     largest_feature.to(at::kDouble),
                                     probe.to(at::kDouble)}));
}

StepResult DrafterRank::finish_step(double learning_rate, double divisor) {
    const at::Tensor gradients = drafter_->weights().gradient_flat();
    if (!row_values_.empty()) {
        // Whether a loss is not finite reaches all drafters inside the gradients, without a
        // collective of its own: loss x 0 is 0 or NaN, and x + 0 is x.
        gradients.narrow(0, 0, 1).add_(at::stack(row_values_).select(1, 0).sum().mul_(0));
    }
    TensorBuffer buffer(gradients);
    group_.all_reduce(rank_, buffer, current_stream(worker_.device()));
    // A step without a single label has nothing to divide by, and its gradients are zeros.
    const double scale = divisor > 0 ? 1 / divisor : 0;
    const GradientNorms norms = optimizer_->step(gradients, scale, learning_rate);

    StepResult result;
    result.num_rows_ = narrow<std::int64_t>(row_values_.size());
    std::vector<at::Tensor> values{norms.norm.view({1})};
    values.insert(values.end(), row_values_.begin(), row_values_.end());
    values.push_back(norms.pieces_N);
    const at::Tensor on_device = at::cat(values);
    const bool page_locked = worker_.device().is_cuda();
    result.values_ = at::empty({on_device.numel()},
                               at::TensorOptions().dtype(at::kDouble).pinned_memory(page_locked));
    result.values_.copy_(on_device, /*non_blocking=*/true);
    result.arrived_.record(current_stream(worker_.device()));

    gradients.zero_();
    row_values_.clear();
    return result;
}

std::vector<std::string> DrafterRank::piece_names() const {
    std::vector<std::string> names;
    for (const AdamW::Piece& piece : optimizer_->pieces()) {
        names.push_back(drafter_->weights().specs()[static_cast<std::size_t>(piece.weight)].name);
    }
    return names;
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

void DrafterRank::snapshot(OptimizerState& into) {
    into.master.copy_(optimizer_->master(), /*non_blocking=*/true);
    into.exp_avg.copy_(optimizer_->exp_avg(), /*non_blocking=*/true);
    into.exp_avg_sq.copy_(optimizer_->exp_avg_sq(), /*non_blocking=*/true);
    into.steps = optimizer_->steps();
    synchronize_stream(worker_.device());
}

}  // namespace dflash::train
