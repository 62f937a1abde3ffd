// SPDX-License-Identifier: Apache-2.0
// RMSNorm over rows as CUDA kernels: y = x r w with r = (mean(x^2) + eps)^(-1/2), in fp32 inside,
// forward and backward.
//
// R rows of H, H a multiple of 8 from 64 to 8192; weight [H] and y bf16, inverse rms [R] and weight
// gradient [H] fp32. No atomics: results are the same bit for bit every time. All launches are
// asynchronous on the stream given last, a stream of the kernels' device; nothing is allocated, and
// without rows nothing is launched. Shapes, types and alignment are checked: Error{Internal}.
#pragma once

#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/kernel_spec.hpp>
#include <dflash/kernels/launch.hpp>
#include <dflash/kernels/row_tensor.hpp>

#include <cstdint>
#include <vector>

namespace dflash::kernels {

struct RmsNormForwardShape {
    std::int64_t hidden = 0;
    Element x = Element::BFloat16;

    /// residual += x before the norm, rounded to bf16; the norm is that of the residual.
    bool add_to_residual = false;
};

struct RmsNormBackwardShape {
    std::int64_t hidden = 0;
    Element x = Element::BFloat16;
    Element dy = Element::BFloat16;
    Element dx = Element::BFloat16;
    bool add = false;  ///< dx is added to what is there
};

KernelSpec rms_norm_forward_kernel(const RmsNormForwardShape& shape);

KernelSpec rms_norm_backward_kernel(const RmsNormBackwardShape& shape);

/// The sum of partial weight gradients; one for all norms, of rows and of heads.
KernelSpec norm_weight_gradient_kernel();

/// What a drafter in bf16 needs, forward and backward: x of the layers and of the head in bf16, the
/// fused context in fp32; gradients of rows in fp32, that of the fused context in bf16.
std::vector<KernelSpec> drafter_rms_norm_kernels(std::int64_t hidden);

/// What the forward of a target in bf16 needs, with and without the residual.
std::vector<KernelSpec> target_rms_norm_kernels(std::int64_t hidden);

/// Blocks of a backward kernel that a GPU runs at a time: a good count for WeightPartials, more
/// does not make it faster.
std::int64_t weight_partials_count(const KernelSpec& backward, int num_multiprocessors);

struct RmsNormForwardTensors {
    RowTensor x_RH;
    RowTensor residual_RH{};  ///< of kernels that add to it
    RowTensor y_RH;           ///< may be x itself
    const void* weight_H = nullptr;

    /// Written if not null.
    float* inverse_rms_R = nullptr;

    /// The inverse rms of a forward before: y is made again out of it, and eps is not used.
    const float* known_inverse_rms_R = nullptr;
};

void rms_norm_forward(const LoadedKernel& kernel,
                      const RmsNormForwardTensors& tensors,
                      std::int64_t num_rows,
                      double eps,
                      gpu::StreamView stream);

struct RmsNormBackwardTensors {
    RowTensor dy_RH;
    RowTensor x_RH;
    const void* weight_H = nullptr;
    const float* inverse_rms_R = nullptr;  ///< of the forward
    RowTensor dx_RH;                       ///< may be dy itself unless it is added to

    /// A bf16 copy of dx as it is afterwards, if not null.
    RowTensor dx_rounded_RH{};

    /// The output of the forward again in bf16, if not null.
    RowTensor y_RH{};

    float* dweight_H = nullptr;  ///< added to
};

/// With xh = x r and g = dy w: dx (+)= r (g - xh mean(g xh)), dw += sum over rows of dy xh.
/// Launches `backward` and norm_weight_gradient_kernel().
void rms_norm_backward(const LoadedKernel& backward,
                       const LoadedKernel& weight_gradient,
                       const RmsNormBackwardTensors& tensors,
                       std::int64_t num_rows,
                       const WeightPartials& partials,
                       gpu::StreamView stream);

}  // namespace dflash::kernels
