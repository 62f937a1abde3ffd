// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding, half-split: pair (i, i + d/2) of a head turns by position x frequency
// i.
//
// R rows, n heads, d head size. Angles are an elementwise product in fp32 (never a matrix product,
// which reduced-precision modes round).
#pragma once

#include <ATen/ATen.h>
#include <vector>

namespace dflash::tensor {

/// cos and sin of every row, times the attention factor of scaled variants.
struct RotaryTable {
    at::Tensor cos_RF;  ///< [R, d / 2] fp32
    at::Tensor sin_RF;  ///< [R, d / 2] fp32

    /// Rows begin .. begin + count - 1.
    RotaryTable rows(std::int64_t begin, std::int64_t count) const {
        return {cos_RF.narrow(0, begin, count), sin_RF.narrow(0, begin, count)};
    }
};

/// Plain frequencies theta^(-2 i / d), i < d/2: computed in fp64, rounded to fp32, so the same on
/// every machine.
std::vector<float> rotary_frequencies(double theta, std::int64_t head_dim);

/// Table for positions [R] (any integer dtype) on their device.
RotaryTable rotary_table(const at::Tensor& positions_R,
                         const std::vector<float>& inv_freq,
                         double attention_factor = 1.0);

/// The same from frequencies [d / 2] (fp32) that lie on the device already.
RotaryTable rotary_table(const at::Tensor& positions_R,
                         const at::Tensor& inv_freq_F,
                         double attention_factor = 1.0);

/// y = x turned forward; x and y [R, n, d] (views allowed), y must not overlap x. A table of F
/// frequencies turns the first 2 F columns; the rest is copied (partial rotary).
void rotary_out(const at::Tensor& y_Rnd, const at::Tensor& x_Rnd, const RotaryTable& table);

/// y = x turned back by the same angles: the gradient with respect to the input of rotary_out.
void rotary_inverse_out(const at::Tensor& y_Rnd, const at::Tensor& x_Rnd, const RotaryTable& table);

}  // namespace dflash::tensor
