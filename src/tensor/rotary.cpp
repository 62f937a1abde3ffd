// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/rotary.hpp>

#include <cmath>

namespace dflash::tensor {
namespace {

/// y = x turned by the table's angles (sign +1) or back (sign -1).
void turn(const at::Tensor& y_Rnd, const at::Tensor& x_Rnd, const RotaryTable& table, int sign) {
    const std::int64_t F = table.cos_RF.size(1);
    const std::int64_t d = x_Rnd.size(2);
    expect_shape(table.cos_RF, {x_Rnd.size(0), kAny}, "rotary table");
    expect_shape(y_Rnd, {x_Rnd.size(0), x_Rnd.size(1), d}, "result of the rotary embedding");
    DFLASH_CHECK(2 * F <= d, "rotary table of {} pairs for heads of {}", F, d);
    const at::ScalarType sum = sum_dtype(x_Rnd.scalar_type());
    if (y_Rnd.scalar_type() != sum || x_Rnd.scalar_type() != sum) {
        const at::Tensor result = at::empty(y_Rnd.sizes(), y_Rnd.options().dtype(sum));
        turn(result, x_Rnd.to(sum), table, sign);
        y_Rnd.copy_(result);
        return;
    }
    const at::Tensor cos = table.cos_RF.to(sum).unsqueeze(1);
    const at::Tensor sin = table.sin_RF.to(sum).unsqueeze(1);
    const at::Tensor first = x_Rnd.narrow(2, 0, F);
    const at::Tensor second = x_Rnd.narrow(2, F, F);
    at::Tensor y_first = y_Rnd.narrow(2, 0, F);
    at::Tensor y_second = y_Rnd.narrow(2, F, F);
    at::mul_out(y_first, first, cos);
    y_first.addcmul_(second, sin, -sign);
    at::mul_out(y_second, second, cos);
    y_second.addcmul_(first, sin, sign);
    if (2 * F < d) {
        y_Rnd.narrow(2, 2 * F, d - 2 * F).copy_(x_Rnd.narrow(2, 2 * F, d - 2 * F));
    }
}

}  // namespace

std::vector<float> rotary_frequencies(double theta, std::int64_t head_dim) {
    std::vector<float> frequencies;
    for (std::int64_t i = 0; i < head_dim / 2; ++i) {
        const double exponent = static_cast<double>(2 * i) / static_cast<double>(head_dim);
        frequencies.push_back(static_cast<float>(1.0 / std::pow(theta, exponent)));
    }
    return frequencies;
}

RotaryTable rotary_table(const at::Tensor& positions_R,
                         const std::vector<float>& inv_freq,
                         double attention_factor) {
    return rotary_table(positions_R,
                        upload(std::span<const float>(inv_freq), positions_R.device()),
                        attention_factor);
}

RotaryTable rotary_table(const at::Tensor& positions_R,
                         const at::Tensor& inv_freq_F,
                         double attention_factor) {
    const at::Tensor angles = positions_R.to(at::kFloat).unsqueeze(1).mul(inv_freq_F);
    RotaryTable table{angles.cos(), angles.sin()};
    if (attention_factor != 1.0) {
        table.cos_RF.mul_(attention_factor);
        table.sin_RF.mul_(attention_factor);
    }
    return table;
}

void rotary_out(const at::Tensor& y_Rnd, const at::Tensor& x_Rnd, const RotaryTable& table) {
    turn(y_Rnd, x_Rnd, table, 1);
}

void rotary_inverse_out(const at::Tensor& y_Rnd,
                        const at::Tensor& x_Rnd,
                        const RotaryTable& table) {
    turn(y_Rnd, x_Rnd, table, -1);
}

}  // namespace dflash::tensor
