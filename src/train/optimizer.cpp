// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/optimizer.hpp>

#include <algorithm>
#include <c10/core/GradMode.h>

namespace dflash::train {
namespace {

constexpr double kClipEpsilon = 1e-6;  // of torch.nn.utils.clip_grad_norm_

}  // namespace

std::int64_t AdamW::max_piece(at::Device device) {
    // On a GPU lists of tensors are worked on together, so small pieces would cost nothing but
    // descriptors; on the CPU a piece in fp64 stays in the second-level cache.
    return device.is_cuda() ? std::int64_t{1} << 24 : std::int64_t{1} << 16;
}

AdamW::AdamW(model::DraftWeights& weights, const AdamWOptions& options)
    : weights_(weights), options_(options) {
    const c10::NoGradGuard no_grad;
    const at::Tensor compute = weights.compute_flat();
    const at::TensorOptions fp32 = compute.options().dtype(at::kFloat);
    master_ = compute.scalar_type() == at::kFloat ? compute : compute.to(at::kFloat);
    exp_avg_ = at::zeros({compute.numel()}, fp32);
    exp_avg_sq_ = at::zeros({compute.numel()}, fp32);
    steps_ = at::zeros({}, fp32);
    std::int64_t offset = 0;
    for (std::int64_t i = 0; i < narrow<std::int64_t>(weights.specs().size()); ++i) {
        const std::int64_t end =
            offset + weights.specs()[static_cast<std::size_t>(i)].num_elements();
        while (offset < end) {
            const std::int64_t count = std::min(max_piece(compute.device()), end - offset);
            pieces_.push_back({.weight = i, .begin = offset, .count = count});
            offset += count;
        }
    }
}

void AdamW::set_master(const at::Tensor& flat_fp32) {
    const c10::NoGradGuard no_grad;
    tensor::expect_shape(flat_fp32, {master_.numel()}, "master weights");
    tensor::expect_dtype(flat_fp32, at::kFloat, "master weights");
    master_.copy_(flat_fp32);
    round_to_compute();
}

void AdamW::set_moments(const at::Tensor& exp_avg,
                        const at::Tensor& exp_avg_sq,
                        std::int64_t steps) {
    const c10::NoGradGuard no_grad;
    tensor::expect_shape(exp_avg, {master_.numel()}, "first moments");
    tensor::expect_shape(exp_avg_sq, {master_.numel()}, "second moments");
    exp_avg_.copy_(exp_avg);
    exp_avg_sq_.copy_(exp_avg_sq);
    steps_.fill_(steps);
}

GradientNorms AdamW::step(const at::Tensor& sums, double scale, double learning_rate) {
    const c10::NoGradGuard no_grad;
    tensor::expect_shape(sums, {master_.numel()}, "gradient sums");
    tensor::expect_dtype(sums, at::kFloat, "gradient sums");
    const std::vector<at::Tensor> gradients = pieces_of(sums);
    GradientNorms norms;
    // Squares of fp32 numbers cannot overflow in fp64, so a norm is finite if and only if all its
    // elements are. On a GPU this is one launch for many pieces, in a fixed order and without
    // temporaries.
    norms.pieces_N = at::stack(at::_foreach_norm(gradients, 2, at::kDouble));
    norms.norm = at::linalg_vector_norm(norms.pieces_N).mul_(scale);

    // x - x is 0 for every finite x and NaN for the others.
    const at::Tensor skip = norms.norm.sub(norms.norm).ne_(0).to(at::kFloat);
    steps_.add_(1).sub_(skip);
    // The update divides gradients by a scalar: here Z max(1, (|g| + eps) / clip).
    const double divisor = scale > 0 ? 1 / scale : 1;
    at::Tensor divide_by = at::full({}, divisor, norms.norm.options());
    if (options_.clip > 0) {
        divide_by = norms.norm.add(kClipEpsilon).div_(options_.clip).clamp_min_(1.0).mul_(divisor);
    }
    at::_fused_adamw_(pieces_of(master_),
                      gradients,
                      pieces_of(exp_avg_),
                      pieces_of(exp_avg_sq_),
                      /*max_exp_avg_sqs=*/{},
                      std::vector<at::Tensor>(pieces_.size(), steps_),
                      learning_rate,
                      options_.beta1,
                      options_.beta2,
                      options_.weight_decay,
                      options_.eps,
                      /*amsgrad=*/false,
                      /*maximize=*/false,
                      /*grad_scale=*/divide_by.to(at::kFloat),
                      /*found_inf=*/skip);
    round_to_compute();
    return norms;
}

std::int64_t AdamW::steps() const {
    return static_cast<std::int64_t>(steps_.item<float>());
}

std::vector<at::Tensor> AdamW::pieces_of(const at::Tensor& flat) const {
    std::vector<at::Tensor> views;
    views.reserve(pieces_.size());
    for (const Piece& piece : pieces_) {
        views.push_back(flat.narrow(0, piece.begin, piece.count));
    }
    return views;
}

void AdamW::round_to_compute() {
    const at::Tensor compute = weights_.compute_flat();
    if (!compute.is_alias_of(master_)) {
        compute.copy_(master_);
    }
}

}  // namespace dflash::train
