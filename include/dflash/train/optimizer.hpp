// SPDX-License-Identifier: Apache-2.0
// AdamW over the flat buffers of the drafter's weights, with fp32 master weights. A step whose
// gradient is not finite changes nothing; that is decided on the device.
//
// P parameters, in N pieces of a weight each.
#pragma once

#include <dflash/kernels/launch.hpp>
#include <dflash/model/drafter.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <memory>
#include <vector>

namespace dflash::train {

struct AdamWOptions {
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0;  ///< decoupled, on all weights
    double clip = 1.0;        ///< largest norm of the normalised gradient; 0: no clipping
};

/// What a step found in its gradient; device tensors.
struct GradientNorms {
    at::Tensor norm;      ///< fp64 scalar: norm of the normalised gradient before clipping
    at::Tensor pieces_N;  ///< fp64 [N]: norms of the sums of the pieces, in the order of pieces()
};

/// The update of torch.optim.AdamW with fused=True (2.11), fp32. The same gradients give the same
/// bits. Not thread-safe: used by the drafter's worker only. Asynchronous on the current stream.
class AdamW {
  public:
    /// Moments zero, step 0. `weights` must outlive this. Master weights are the compute weights
    /// themselves where those are fp32, else a buffer of their own; set them with set_master. With
    /// `find_kernel` steps are made by kernels of the weights' GPU, else by Torch operations: the
    /// CPU's path, and the oracle.
    AdamW(model::DraftWeights& weights,
          const AdamWOptions& options,
          const kernels::FindKernel& find_kernel = {});
    ~AdamW();

    /// Master weights from fp32 values [P] on any device; compute weights are rounded from them.
    void set_master(const at::Tensor& flat_fp32);

    /// Moments [P] fp32 on any device, and how many steps they have seen: to continue a run.
    void set_moments(const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq, std::int64_t steps);

    /// One step with the gradient g = scale x sums, where `sums` is [P] fp32 (usually
    /// weights.gradient_flat(), reduced over drafters) and scale is 1 / Z, or 0 for sums that are
    /// zeros. g is multiplied by min(1, clip / (|g| + 1e-6)). Uses `sums` up.
    ///
    /// If |g| is not finite, which it is not if any element of `sums` is not, then weights, moments
    /// and steps() stay as they are, bit for bit.
    GradientNorms step(const at::Tensor& sums, double scale, double learning_rate);

    at::Tensor master() const { return master_; }  // [P] fp32

    at::Tensor exp_avg() const { return exp_avg_; }  // [P] fp32

    at::Tensor exp_avg_sq() const { return exp_avg_sq_; }  // [P] fp32

    /// Steps that were taken; skipped ones do not count. Waits for the device.
    std::int64_t steps() const;

    const AdamWOptions& options() const { return options_; }

    /// A run of elements of one weight.
    struct Piece {
        std::int64_t weight;  ///< index into the specs of the weights
        std::int64_t begin;   ///< first element in the flat buffers
        std::int64_t count;
    };

    const std::vector<Piece>& pieces() const { return pieces_; }

    /// Most elements of a piece. A piece of gradients is converted to fp64 on the CPU, so this
    /// bounds the largest temporary.
    static std::int64_t max_piece(at::Device device);

  private:
    class KernelPath;

    GradientNorms step_by_torch(const at::Tensor& sums, double scale, double learning_rate);
    std::vector<at::Tensor> pieces_of(const at::Tensor& flat) const;
    void round_to_compute();

    model::DraftWeights& weights_;
    AdamWOptions options_;
    std::vector<Piece> pieces_;
    at::Tensor master_;
    at::Tensor exp_avg_;
    at::Tensor exp_avg_sq_;
    at::Tensor steps_;  // fp32 scalar on the device, as the fused update takes it: exact to 2^24
    std::unique_ptr<KernelPath> kernel_path_;  // null: Torch's
};

}  // namespace dflash::train
