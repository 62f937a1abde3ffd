// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/kernels/adamw.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/optimizer.hpp>

#include <algorithm>
#include <c10/core/GradMode.h>
#include <span>

namespace dflash::train {
namespace {

constexpr double kClipEpsilon = 1e-6;  // of torch.nn.utils.clip_grad_norm_

}  // namespace

/// The kernels of one GPU, and what they need there beside the optimizer's buffers.
class AdamW::KernelPath {
  public:
    KernelPath(const std::vector<Piece>& pieces,
               at::Device device,
               const kernels::FindKernel& find_kernel)
        : kernels_{.norm = find_kernel(kernels::gradient_norm_kernel()),
                   .decision = find_kernel(kernels::adamw_decision_kernel()),
                   .update = find_kernel(kernels::adamw_update_kernel())},
          device_(device),
          num_pieces_(narrow<std::int64_t>(pieces.size())) {
        std::vector<kernels::NormPiece> parts;
        for (const Piece& piece : pieces) {
            parts.push_back({piece.begin, piece.count});
        }
        const kernels::NormSchedule schedule = kernels::make_norm_schedule(parts);
        chunks_C2_ = tensor::upload(std::span(schedule.chunks), device);
        first_chunk_N1_ = tensor::upload(std::span(schedule.first_chunk), device);
        squares_C_ = at::empty({chunks_C2_.numel() / 2}, of(at::kDouble));
        factors_ = at::empty({kernels::kAdamWFactorBytes}, of(at::kByte));
    }

    GradientNorms step(const kernels::AdamWTensors& tensors,
                       const at::Tensor& steps,
                       const kernels::AdamWRule& rule,
                       std::int64_t num_parameters) const {
        const GradientNorms norms{.norm = at::empty({}, of(at::kDouble)),
                                  .pieces_N = at::empty({num_pieces_}, of(at::kDouble))};
        kernels::adamw_step(kernels_,
                            {.chunks = chunks_C2_.data_ptr<std::int64_t>(),
                             .first_chunk = first_chunk_N1_.data_ptr<std::int32_t>(),
                             .num_chunks = squares_C_.numel(),
                             .num_pieces = num_pieces_,
                             .squares = squares_C_.data_ptr<double>(),
                             .factors = factors_.data_ptr(),
                             .norm = norms.norm.data_ptr<double>(),
                             .piece_norms_N = norms.pieces_N.data_ptr<double>(),
                             .steps = steps.data_ptr<float>()},
                            tensors,
                            rule,
                            num_parameters,
                            tensor::current_stream(device_));
        return norms;
    }

  private:
    at::TensorOptions of(at::ScalarType dtype) const {
        return at::TensorOptions(device_).dtype(dtype);
    }

    kernels::AdamWKernels kernels_;
    at::Device device_;
    std::int64_t num_pieces_;
    at::Tensor chunks_C2_;       // int64
    at::Tensor first_chunk_N1_;  // int32
    at::Tensor squares_C_;       // fp64
    at::Tensor factors_;
};

std::int64_t AdamW::max_piece(at::Device device) {
    // On a GPU lists of tensors are worked on together, so small pieces would cost nothing but
    // descriptors; on the CPU a piece in fp64 stays in the second-level cache.
    return device.is_cuda() ? std::int64_t{1} << 24 : std::int64_t{1} << 16;
}

AdamW::AdamW(model::DraftWeights& weights,
             const AdamWOptions& options,
             const kernels::FindKernel& find_kernel)
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
    if (find_kernel) {
        kernel_path_ = std::make_unique<KernelPath>(pieces_, compute.device(), find_kernel);
    }
}

AdamW::~AdamW() = default;

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
    if (kernel_path_ == nullptr) {
        return step_by_torch(sums, scale, learning_rate);
    }
    const at::Tensor compute = weights_.compute_flat();
    const bool rounded = !compute.is_alias_of(master_);
    if (rounded) {
        tensor::expect_dtype(compute, at::kBFloat16, "weights that kernels round");
    }
    return kernel_path_->step({.gradient_P = sums.data_ptr<float>(),
                               .master_P = master_.data_ptr<float>(),
                               .exp_avg_P = exp_avg_.data_ptr<float>(),
                               .exp_avg_sq_P = exp_avg_sq_.data_ptr<float>(),
                               .weight_P = rounded ? compute.data_ptr() : nullptr},
                              steps_,
                              {.beta1 = options_.beta1,
                               .beta2 = options_.beta2,
                               .eps = options_.eps,
                               .weight_decay = options_.weight_decay,
                               .clip = options_.clip,
                               .scale = scale,
                               .learning_rate = learning_rate},
                              master_.numel());
}

GradientNorms AdamW::step_by_torch(const at::Tensor& sums, double scale, double learning_rate) {
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
