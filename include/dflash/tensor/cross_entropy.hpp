// SPDX-License-Identifier: Apache-2.0
// Cross-entropy of rows of logits, and what the product with the head needs for its gradient.
//
// C rows of V words. In fp32 inside, fp64 for fp64.
#pragma once

#include <ATen/ATen.h>

namespace dflash::tensor {

/// P - onehot(label) of every row, in the dtype of products.
struct LogitsGradient {
    at::Tensor gradient_CV;

    /// Of e5m2 (float8.hpp): the rows are to be multiplied by it.
    at::Tensor scale_C{};

    /// If defined, the rows are still to be divided by it: after the product, which is linear.
    at::Tensor divisor_C1{};
};

/// By Torch operations, on any device: leaves -log P(label) and the smallest index of the largest
/// logit, and of `logits_CV` (fp32 or fp64) e^(x - max), with the label's entry less the sum of
/// all. Returns that sum.
at::Tensor cross_entropy_out(const at::Tensor& cross_entropy_C,
                             const at::Tensor& argmax_C,
                             const at::Tensor& logits_CV,
                             const at::Tensor& label_C);

}  // namespace dflash::tensor
