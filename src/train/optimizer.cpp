// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/optimizer.hpp>

#include <algorithm>
#include <c10/core/GradMode.h>
#include <cmath>
#include <vector>

namespace dflash::train {
namespace {

constexpr double kClipEpsilon = 1e-6;  // of torch.nn.utils.clip_grad_norm_

}  // namespace

std::int64_t AdamW::chunk_elements(at::Device device) {
    // On the CPU a chunk of each of the four buffers stays in the second-level cache; on a GPU a
    // chunk must be large against the time of a launch.
    return device.is_cuda() ? std::int64_t{1} << 24 : std::int64_t{1} << 16;
}

at::Tensor norm_fp64(const at::Tensor& flat) {
    const c10::NoGradGuard no_grad;
    const std::int64_t chunk = AdamW::chunk_elements(flat.device());
    at::Tensor sum = at::zeros({}, flat.options().dtype(at::kDouble));
    for (std::int64_t begin = 0; begin < flat.numel(); begin += chunk) {
        const std::int64_t count = std::min(chunk, flat.numel() - begin);
        sum.add_(flat.narrow(0, begin, count).to(at::kDouble).square_().sum());
    }
    return sum.sqrt_();
}

AdamW::AdamW(model::DraftWeights& weights, const AdamWOptions& options)
    : weights_(weights), options_(options) {
    const c10::NoGradGuard no_grad;
    const at::Tensor compute = weights.compute_flat();
    const at::TensorOptions fp32 = compute.options().dtype(at::kFloat);
    master_ = compute.scalar_type() == at::kFloat ? compute : compute.to(at::kFloat);
    exp_avg_ = at::zeros({compute.numel()}, fp32);
    exp_avg_sq_ = at::zeros({compute.numel()}, fp32);
}

void AdamW::set_master(const at::Tensor& flat_fp32) {
    const c10::NoGradGuard no_grad;
    tensor::expect_shape(flat_fp32, {master_.numel()}, "master weights");
    tensor::expect_dtype(flat_fp32, at::kFloat, "master weights");
    master_.copy_(flat_fp32);
    const std::int64_t chunk = chunk_elements(master_.device());
    for (std::int64_t begin = 0; begin < master_.numel(); begin += chunk) {
        round_to_compute(begin, std::min(chunk, master_.numel() - begin));
    }
}

void AdamW::set_moments(const at::Tensor& exp_avg,
                        const at::Tensor& exp_avg_sq,
                        std::int64_t steps) {
    const c10::NoGradGuard no_grad;
    tensor::expect_shape(exp_avg, {master_.numel()}, "first moments");
    tensor::expect_shape(exp_avg_sq, {master_.numel()}, "second moments");
    exp_avg_.copy_(exp_avg);
    exp_avg_sq_.copy_(exp_avg_sq);
    steps_ = steps;
}

at::Tensor AdamW::step(const at::Tensor& sums, double scale, double learning_rate) {
    const c10::NoGradGuard no_grad;
    tensor::expect_shape(sums, {master_.numel()}, "gradient sums");
    ++steps_;
    const at::Tensor norm = norm_fp64(sums).mul_(scale);
    at::Tensor factor = at::full({}, scale, norm.options());
    if (options_.clip > 0) {
        factor.mul_(norm.add(kClipEpsilon).reciprocal_().mul_(options_.clip).clamp_max_(1.0));
    }
    factor = factor.to(at::kFloat);

    const double correction1 = 1 - std::pow(options_.beta1, static_cast<double>(steps_));
    const double correction2 = 1 - std::pow(options_.beta2, static_cast<double>(steps_));
    const double step_size = learning_rate / correction1;
    const std::int64_t chunk = chunk_elements(master_.device());
    for (std::int64_t begin = 0; begin < master_.numel(); begin += chunk) {
        const std::int64_t count = std::min(chunk, master_.numel() - begin);
        const at::Tensor gradient = sums.narrow(0, begin, count).mul(factor);
        at::Tensor weight = master_.narrow(0, begin, count);
        at::Tensor first = exp_avg_.narrow(0, begin, count);
        at::Tensor second = exp_avg_sq_.narrow(0, begin, count);
        weight.mul_(1 - learning_rate * options_.weight_decay);
        first.lerp_(gradient, 1 - options_.beta1);
        second.mul_(options_.beta2).addcmul_(gradient, gradient, 1 - options_.beta2);
        at::Tensor denominator = second.sqrt();
        denominator.div_(std::sqrt(correction2)).add_(options_.eps);
        weight.addcdiv_(first, denominator, -step_size);
        round_to_compute(begin, count);
    }
    return norm;
}

void AdamW::round_to_compute(std::int64_t begin, std::int64_t count) {
    const at::Tensor compute = weights_.compute_flat();
    if (!compute.is_alias_of(master_)) {
        compute.narrow(0, begin, count).copy_(master_.narrow(0, begin, count));
    }
}

}  // namespace dflash::train
