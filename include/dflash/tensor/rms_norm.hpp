// SPDX-License-Identifier: Apache-2.0
// RMSNorm over the last dimension: y = x r w with r = (mean(x^2) + eps)^(-1/2), in fp32 inside.
//
// `...` any leading dimensions, D the last one; x may be a strided view. Source: transformers 5.24
// Qwen3RMSNorm (its rounding of x r to the compute dtype before the product with w is left out).
#pragma once

#include <ATen/ATen.h>

namespace dflash::tensor {

/// y = x r w, a new tensor in the dtype of w.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight_D, double eps);

/// The same into y (must not overlap x). If `inverse_rms` is given ([..., 1], fp32, fp64 for fp64),
/// r is left there for the backward.
void rms_norm_out(const at::Tensor& y,
                  const at::Tensor& x,
                  const at::Tensor& weight_D,
                  double eps,
                  const at::Tensor* inverse_rms = nullptr);

/// y = x r w with the r of a forward before: makes y again in a backward pass.
void rms_norm_again(const at::Tensor& y,
                    const at::Tensor& x,
                    const at::Tensor& weight_D,
                    const at::Tensor& inverse_rms);

/// Backward, in fp32: dw += sum over rows of dy x r, and dx = r (g - x r mean(g x r)) with g = dy w
/// written (`add` false) or added (`add` true) to dx. dy is used up: its content is undefined
/// afterwards if it is fp32. dx may be dy itself if `add` is false.
void rms_norm_backward(const at::Tensor& dx,
                       bool add,
                       const at::Tensor& dweight_D,
                       const at::Tensor& dy,
                       const at::Tensor& x,
                       const at::Tensor& weight_D,
                       const at::Tensor& inverse_rms);

}  // namespace dflash::tensor
