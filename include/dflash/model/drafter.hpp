// SPDX-License-Identifier: Apache-2.0
// The drafter: forward and hand-written backward of one packed row over explicit buffers, as in
// docs/walkthrough.md. No autograd.
//
// T tokens of the row, N blocks of B slots (M = N B block rows), K tapped layers, H hidden size, V
// vocabulary, R head rows.
#pragma once

#include <dflash/data/packed_row.hpp>
#include <dflash/kernels/launch.hpp>
#include <dflash/model/attention.hpp>
#include <dflash/model/config.hpp>
#include <dflash/model/head_precision.hpp>
#include <dflash/model/loss_weights.hpp>
#include <dflash/tensor/row_ops.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace dflash::model {

/// Frozen parts of the target that the drafter uses, on the drafter's device and in its compute
/// dtype.
struct FrozenEnds {
    at::Tensor embed_VH;
    at::Tensor head_VH;
    Float8Head float8{};  ///< made by the first drafter that needs it
};

/// How the parts that are no products are computed: by Torch operations, or by kernels.
struct DrafterPaths {
    std::unique_ptr<BlockAttention> attention;
    std::unique_ptr<tensor::RowOps> row_ops;
    kernels::FindKernel find_kernel{};  ///< for the optimizer; empty: Torch operations there, too
};

/// Those of the CPU, which serve any device and dtype.
DrafterPaths make_torch_paths(at::Device device);

/// Weights in one flat buffer each for compute and gradient; every weight is a view. Where the
/// compute dtype is fp32 `compute` and the optimizer's master weights are the same memory.
class DraftWeights {
  public:
    enum class Use { Training, Inference };

    /// Uninitialised compute weights and, for training, zeroed gradients. Copies share the memory.
    DraftWeights(const DraftConfig& config,
                 at::Device device,
                 at::ScalarType compute_dtype,
                 Use use = Use::Training);

    std::int64_t numel() const { return compute_flat_.numel(); }

    at::Tensor compute_flat() const { return compute_flat_; }  // [P] compute dtype

    at::Tensor gradient_flat() const {
        return gradient_flat_;
    }  // [P] fp32 (fp64 if compute is): sums over rows, not normalised; undefined for inference

    const std::vector<WeightSpec>& specs() const { return specs_; }

    at::Tensor weight(std::int64_t i) const { return weights_[static_cast<std::size_t>(i)]; }

    at::Tensor gradient(std::int64_t i) const { return gradients_[static_cast<std::size_t>(i)]; }

    /// Index of a weight by name; internal error if there is none.
    std::int64_t index(const std::string& name) const;

    /// Weights first .. first + count - 1, which lie one after another in `flat` (a buffer of this
    /// layout) and have the same columns, as one matrix: their products are one GEMM.
    at::Tensor joined_in(const at::Tensor& flat, std::int64_t first, std::int64_t count) const;

    /// View of weight i inside another flat buffer of the same layout (master weights, moments).
    at::Tensor view_in(const at::Tensor& flat, std::int64_t i) const;

  private:
    std::vector<WeightSpec> specs_;
    std::vector<std::int64_t> offsets_;
    at::Tensor compute_flat_;
    at::Tensor gradient_flat_;
    std::vector<at::Tensor> weights_;
    std::vector<at::Tensor> gradients_;
};

/// Initial weights from the seed: matrices N(0, initializer_range), norms 1; a pure function of
/// (seed, name), the same on every device. fp32 on the CPU, in the layout of DraftWeights.
at::Tensor make_initial_weights(const DraftConfig& config, std::uint64_t seed);

/// Sums of one row, as device tensors: reading them waits for the device.
struct RowSums {
    at::Tensor loss;     // fp64 scalar: sum of w m CE
    at::Tensor correct;  // int64 [B]: right argmax by slot
};

/// What golden checks look at; filled only when asked for.
struct RowTrace {
    at::Tensor hidden_MH;       ///< final-norm output
    at::Tensor hidden_grad_MH;  ///< gradient of the loss sum with respect to it
    at::Tensor cross_entropy_R;
    at::Tensor weight_R;  ///< of the rows in the loss
};

/// One drafter on one device. Not thread-safe: used by its worker only. CUDA work is asynchronous
/// on the worker's current Torch stream.
class Drafter {
  public:
    /// `paths` must serve the device and the dtype. For inference there are no gradients, and
    /// forward_backward() is an internal error. The first `recompute_layers` layers do not keep the
    /// inside of their MLP for the backward, which makes it again: the same bits. Throws
    /// Error{Config} for a head in 8 bits where the device has no products for it.
    Drafter(DraftConfig config,
            FrozenEnds ends,
            at::Device device,
            at::ScalarType compute_dtype,
            DrafterPaths paths,
            DraftWeights::Use use = DraftWeights::Use::Training,
            LossWeights loss_weights = {},
            std::int64_t recompute_layers = 0,
            HeadPrecision head_precision = HeadPrecision::Compute);
    ~Drafter();

    const DraftConfig& config() const { return config_; }

    /// For another drafter on the same device.
    const FrozenEnds& ends() const { return ends_; }

    const LossWeights& loss_weights() const { return loss_weights_; }

    DraftWeights& weights() { return weights_; }

    /// Forward, loss and backward of a row; adds to weights().gradient_flat(). features_KTH: [K, T,
    /// H] in the compute dtype. Rows without head rows add nothing.
    RowSums forward_backward(const data::PackedRow& row,
                             const at::Tensor& features_KTH,
                             RowTrace* trace = nullptr);

    /// Forward only, for evaluation and drafting: correct counts by slot, and the argmax of every
    /// head row if asked for. The loss is that of packed weights, whatever training's is.
    RowSums evaluate(const data::PackedRow& row,
                     const at::Tensor& features_KTH,
                     at::Tensor* argmax_R = nullptr);

    /// Final-norm output of all block rows, [M, H].
    at::Tensor hidden(const data::PackedRow& row, const at::Tensor& features_KTH);

    /// Upper bound of the bytes that forward_backward allocates for a row of that size, the largest
    /// single piece, and the bytes of weights and gradients: for the planner.
    struct MemoryNeed {
        Bytes weights = 0;
        Bytes activations = 0;
        Bytes largest_piece = 0;
    };

    static MemoryNeed memory_need(const DraftConfig& config,
                                  std::int64_t tokens,
                                  std::int64_t blocks,
                                  Bytes element_size,
                                  std::int64_t recompute_layers = 0,
                                  HeadPrecision head_precision = HeadPrecision::Compute);

  private:
    struct Buffers;
    struct Pass;
    DraftConfig config_;
    FrozenEnds ends_;
    DraftWeights weights_;
    LossWeights loss_weights_;
    std::int64_t recompute_layers_;
    HeadPrecision head_precision_;
    std::unique_ptr<Buffers> buffers_;
};

}  // namespace dflash::model
