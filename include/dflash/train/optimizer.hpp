// SPDX-License-Identifier: Apache-2.0
// AdamW over the flat buffers of the drafter's weights, with fp32 master weights. Works in chunks,
// so that no temporary is as large as the parameters, and in a fixed order, so that the same
// gradients give the same bits.
//
// P parameters.
#pragma once

#include <dflash/model/drafter.hpp>

#include <ATen/ATen.h>
#include <cstdint>

namespace dflash::train {

struct AdamWOptions {
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0;  ///< decoupled, on all weights
    double clip = 1.0;        ///< largest norm of the normalised gradient; 0: no clipping
};

/// Order of operations of torch.optim.AdamW (2.11, foreach=False, capturable=False), fp32.
/// Not thread-safe: used by the drafter's worker only. Asynchronous on the current stream.
class AdamW {
  public:
    /// Moments zero, step 0. `weights` must outlive this. Master weights are the compute weights
    /// themselves where those are fp32, else a buffer of their own; set them with set_master.
    AdamW(model::DraftWeights& weights, const AdamWOptions& options);

    /// Master weights from fp32 values [P] on any device; compute weights are rounded from them.
    void set_master(const at::Tensor& flat_fp32);

    /// Moments [P] fp32 on any device, and how many steps they have seen: to continue a run.
    void set_moments(const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq, std::int64_t steps);

    /// One step with the gradient g = scale x sums, where `sums` is [P] fp32 (usually
    /// weights.gradient_flat(), reduced over drafters) and scale is 1 / Z. g is multiplied by
    /// min(1, clip / (|g| + 1e-6)). Returns |g| before that, an fp64 scalar on the device; a norm
    /// that is not finite makes all weights so, and the caller has to end the run.
    at::Tensor step(const at::Tensor& sums, double scale, double learning_rate);

    at::Tensor master() const { return master_; }  // [P] fp32

    at::Tensor exp_avg() const { return exp_avg_; }  // [P] fp32

    at::Tensor exp_avg_sq() const { return exp_avg_sq_; }  // [P] fp32

    std::int64_t steps() const { return steps_; }

    const AdamWOptions& options() const { return options_; }

    /// Elements of the largest temporary: sums over chunks are fp64, so 8 bytes each.
    static std::int64_t chunk_elements(at::Device device);

  private:
    void round_to_compute(std::int64_t begin, std::int64_t count);

    model::DraftWeights& weights_;
    AdamWOptions options_;
    at::Tensor master_;
    at::Tensor exp_avg_;
    at::Tensor exp_avg_sq_;
    std::int64_t steps_ = 0;
};

/// Euclidean norm of a flat fp32 tensor as an fp64 scalar on its device, summed in fp64, chunk by
/// chunk in a fixed order.
at::Tensor norm_fp64(const at::Tensor& flat);

}  // namespace dflash::train
