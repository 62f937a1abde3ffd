// SPDX-License-Identifier: Apache-2.0
// The gated activation of the MLP: y = silu(gate) up, silu(g) = g sigmoid(g), in fp32 inside.
#pragma once

#include <ATen/ATen.h>
#include <cstdint>

namespace dflash::tensor {

/// Elements that the backward works on at a time: at most six temporaries in the dtype of sums.
inline constexpr std::int64_t kSwigluPiece = std::int64_t{1} << 20;

/// y = silu(gate) up; all of one shape and compute dtype; views allowed; y must not overlap.
void swiglu_out(const at::Tensor& y, const at::Tensor& gate, const at::Tensor& up);

/// dgate = dy up sigma (1 + gate (1 - sigma)), dup = dy silu(gate), with sigma = sigmoid(gate).
/// If `y` is given the activation is made again into it (it is needed for the gradient of the next
/// weight). dy may be fp32; dgate, dup in the compute dtype or fp32. dgate may be gate, dup up and
/// y dy; there must be no other overlap.
void swiglu_backward_out(const at::Tensor& dgate,
                         const at::Tensor& dup,
                         const at::Tensor* y,
                         const at::Tensor& dy,
                         const at::Tensor& gate,
                         const at::Tensor& up);

}  // namespace dflash::tensor
