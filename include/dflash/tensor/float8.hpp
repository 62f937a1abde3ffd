// SPDX-License-Identifier: Apache-2.0
// Matrices in 8 bits with a scale for each row, and what the head's products do with them, by Torch
// operations: the CPU's path, and the oracle of the kernels.
//
// Formats: E4M3 (3 bits of mantissa, largest number 448) for weights and activations, E5M2 (2 bits,
// 2^-16 to 57344) for the gradient of logits, which spans many decades; OCP 8-bit Floating Point
// Specification (OFP8), revision 1.0. R rows, C columns, I inner size, O outputs.
#pragma once

#include <dflash/tensor/cross_entropy.hpp>

#include <ATen/ATen.h>

namespace dflash::tensor {

/// Row r stands for scale_R[r] values_RC[r].
struct Float8Rows {
    at::Tensor values_RC;  ///< e4m3 or e5m2
    at::Tensor scale_R;    ///< fp32

    bool defined() const { return values_RC.defined(); }

    /// Rows begin .. begin + count - 1.
    Float8Rows narrow(std::int64_t begin, std::int64_t count) const {
        return {values_RC.narrow(0, begin, count), scale_R.narrow(0, begin, count)};
    }
};

/// Uninitialised rows in e4m3.
Float8Rows empty_float8_rows(std::int64_t rows, std::int64_t columns, at::Device device);

/// y = x in e4m3: scale = largest |x| of the row / 448, values x (448 / largest |x|), in fp32 and
/// rounded to nearest even. Rows with no magnitude from 2^-100 on give zeros.
void quantize_rows_out(const Float8Rows& y_RC, const at::Tensor& x_RC);

/// The rows that are stood for, in `dtype`.
at::Tensor dequantized(const Float8Rows& rows_RC, at::ScalarType dtype);

/// y = x W^T of dequantized operands, in y's dtype, in pieces of W's rows.
void float8_product_out(const at::Tensor& y_RO,
                        const Float8Rows& x_RI,
                        const Float8Rows& weight_OI);

/// From what cross_entropy_out() left of logits, and the sums that it returned: P - onehot(label)
/// as rows in e5m2, with the label's entry -2^15 exactly. It is minus the sum of the others, so
/// none is larger. Uses `logits_CV` up.
void float8_gradient_out(const Float8Rows& gradient_CV,
                         const at::Tensor& logits_CV,
                         const at::Tensor& label_C,
                         const at::Tensor& total_C1);

}  // namespace dflash::tensor
