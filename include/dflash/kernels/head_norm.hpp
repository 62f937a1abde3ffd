// SPDX-License-Identifier: Apache-2.0
// Per-head RMSNorm and rotary embedding of queries or keys in one pass as CUDA kernels, forward and
// backward.
//
// R rows, N heads, D head size (32, 64, 128, 256), F pairs that turn, F <= D / 2: pair (i, i + F)
// of a head turns by the angle i of its row, columns from 2 F on stay. Heads of a row are
// contiguous. Tensors are bf16 (dy also fp32), sums fp32; cos and sin fp32 [R, F]. No atomics:
// results are the same bit for bit every time. All launches are asynchronous on the stream given
// last, a stream of the kernels' device; nothing is allocated, and without rows nothing is
// launched. Shapes, types and alignment are checked: Error{Internal}.
#pragma once

#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/kernel_spec.hpp>
#include <dflash/kernels/launch.hpp>
#include <dflash/kernels/row_tensor.hpp>

#include <cstdint>
#include <vector>

namespace dflash::kernels {

struct HeadNormShape {
    std::int64_t head_dim = 0;

    /// Columns that turn, 2 F: a multiple of 16, as is what stays; 0 means all.
    std::int64_t rotary_columns = 0;
};

/// `norm` false: the heads are only turned (Llama).
KernelSpec head_norm_forward_kernel(const HeadNormShape& shape, bool norm);

KernelSpec head_norm_backward_kernel(const HeadNormShape& shape, Element dy);

/// Both, and the sum of weight gradients.
std::vector<KernelSpec> drafter_head_norm_kernels(const HeadNormShape& shape, Element dy);

/// The forward with a norm (Qwen3) or without (Llama).
std::vector<KernelSpec> target_head_norm_kernels(const HeadNormShape& shape, bool norm);

/// cos and sin of every row's angles, times the attention factor of scaled variants.
struct RotaryRows {
    const float* cos_RF = nullptr;
    const float* sin_RF = nullptr;
    std::int64_t row_stride = 0;  ///< of both, in elements; a multiple of 4
};

struct HeadNormForwardTensors {
    RowTensor x_RND;                 ///< usually a view of a joined projection
    RowTensor y_RND;                 ///< may be x itself
    const void* weight_D = nullptr;  ///< bf16; not read by kernels without a norm
    RotaryRows rotary{};
    float* inverse_rms_RN = nullptr;  ///< contiguous, written if not null; only with a norm
};

/// y = turned(rounded(x r w)), r = (mean(x^2) + eps)^(-1/2) over the head; rounded to bf16.
void head_norm_forward(const LoadedKernel& kernel,
                       const HeadNormForwardTensors& tensors,
                       std::int64_t num_rows,
                       std::int64_t num_heads,
                       double eps,
                       gpu::StreamView stream);

struct HeadNormBackwardTensors {
    RowTensor dy_RND;
    RowTensor x_RND;
    const void* weight_D = nullptr;
    const float* inverse_rms_RN = nullptr;  ///< of the forward
    RotaryRows rotary{};
    RowTensor dx_RND;            ///< usually a view of a joined projection's gradient
    float* dweight_D = nullptr;  ///< added to
};

/// With dn = dy turned back, xh = x r and g = dn w: dx = r (g - xh mean(g xh)) over the head,
/// dw += sum over all heads of dn xh. Launches `backward` and norm_weight_gradient_kernel() of
/// rms_norm.hpp. For the count of partials see weight_partials_count().
void head_norm_backward(const LoadedKernel& backward,
                        const LoadedKernel& weight_gradient,
                        const HeadNormBackwardTensors& tensors,
                        std::int64_t num_rows,
                        std::int64_t num_heads,
                        const WeightPartials& partials,
                        gpu::StreamView stream);

}  // namespace dflash::kernels
