// SPDX-License-Identifier: Apache-2.0
// Products with a weight, y = x W^T, forward and backward.
//
// R rows, I inputs, O outputs. Matrices may be views with any row stride; columns lie one after
// another. x, W and y have one compute dtype (bf16 or fp32; fp64 in tests), with one exception:
// where a function says "or fp32", an fp32 result of bf16 operands is kept as it was summed,
// without a rounding to bf16. Asynchronous on the current stream.
#pragma once

#include <ATen/ATen.h>

namespace dflash::tensor {

/// x W^T as a new tensor [R, O] in the dtype of x.
at::Tensor linear(const at::Tensor& x_RI, const at::Tensor& weight_OI);

/// y = x W^T. y in the compute dtype or fp32.
void linear_out(const at::Tensor& y_RO, const at::Tensor& x_RI, const at::Tensor& weight_OI);

/// y += x W^T. y in the compute dtype or fp32.
void linear_add(const at::Tensor& y_RO, const at::Tensor& x_RI, const at::Tensor& weight_OI);

/// dx = dy W. dx in the compute dtype or fp32.
void linear_backward_input_out(const at::Tensor& dx_RI,
                               const at::Tensor& dy_RO,
                               const at::Tensor& weight_OI);

/// dx += dy W. dx in the compute dtype or fp32.
void linear_backward_input_add(const at::Tensor& dx_RI,
                               const at::Tensor& dy_RO,
                               const at::Tensor& weight_OI);

/// dW += dy^T x, dW in fp32 (fp64 for fp64 operands). For bf16 operands no bits of the sum over
/// rows are lost: the product is made in fp32 and added in fp32.
void linear_backward_weight_add(const at::Tensor& dweight_OI,
                                const at::Tensor& dy_RO,
                                const at::Tensor& x_RI);

}  // namespace dflash::tensor
