// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/float8.hpp>

#include <algorithm>

namespace dflash::tensor {
namespace {

constexpr double kLargestE4M3 = 448;
constexpr double kLabelE5M2 = 32768;
constexpr double kSmallest = 0x1p-100;  // what factors can be formed for in fp32

constexpr std::int64_t kPieceElements = std::int64_t{4} << 20;

/// numerator / x, rounded once; 0 where x is below kSmallest.
at::Tensor quotient(double numerator, const at::Tensor& x) {
    return at::full_like(x, numerator).div_(x).masked_fill_(x.lt(kSmallest), 0);
}

}  // namespace

Float8Rows empty_float8_rows(std::int64_t rows, std::int64_t columns, at::Device device) {
    const at::TensorOptions options(device);
    return {at::empty({rows, columns}, options.dtype(at::kFloat8_e4m3fn)),
            at::empty({rows}, options.dtype(at::kFloat))};
}

void quantize_rows_out(const Float8Rows& y_RC, const at::Tensor& x_RC) {
    expect_dtype(y_RC.values_RC, at::kFloat8_e4m3fn, "rows of 8 bits");
    expect_shape(y_RC.values_RC, {x_RC.size(0), x_RC.size(1)}, "rows of 8 bits");
    const at::Tensor x32_RC = x_RC.to(at::kFloat);
    const at::Tensor largest_R1 = x32_RC.abs().amax(1, /*keepdim=*/true);
    y_RC.scale_R.copy_(
        largest_R1.div(kLargestE4M3).masked_fill_(largest_R1.lt(kSmallest), 0).squeeze(1));
    y_RC.values_RC.copy_(x32_RC.mul(quotient(kLargestE4M3, largest_R1)));
}

at::Tensor dequantized(const Float8Rows& rows_RC, at::ScalarType dtype) {
    return rows_RC.values_RC.to(dtype).mul_(rows_RC.scale_R.to(dtype).unsqueeze(1));
}

void float8_product_out(const at::Tensor& y_RO,
                        const Float8Rows& x_RI,
                        const Float8Rows& weight_OI) {
    const std::int64_t outputs = weight_OI.values_RC.size(0);
    const std::int64_t inner = weight_OI.values_RC.size(1);
    expect_shape(y_RO, {x_RI.values_RC.size(0), outputs}, "result of a product in fp8");
    expect_shape(x_RI.values_RC, {kAny, inner}, "rows of a product in fp8");
    const at::Tensor x = dequantized(x_RI, y_RO.scalar_type());
    const std::int64_t piece =
        std::max<std::int64_t>(1, kPieceElements / std::max(inner, x.size(0)));
    for (std::int64_t begin = 0; begin < outputs; begin += piece) {
        const std::int64_t count = std::min(piece, outputs - begin);
        const at::Tensor weight = dequantized(weight_OI.narrow(begin, count), y_RO.scalar_type());
        y_RO.narrow(1, begin, count).copy_(at::mm(x, weight.t()));
    }
}

void float8_gradient_out(const Float8Rows& gradient_CV,
                         const at::Tensor& logits_CV,
                         const at::Tensor& label_C,
                         const at::Tensor& total_C1) {
    expect_dtype(gradient_CV.values_RC, at::kFloat8_e5m2, "gradient of logits in fp8");
    const at::Tensor label_C1 = label_C.unsqueeze(1);
    logits_CV.scatter_(1, label_C1, 0);
    const at::Tensor others_C1 = logits_CV.sum(1, /*keepdim=*/true);
    gradient_CV.scale_R.copy_(others_C1.div(total_C1).div_(kLabelE5M2).squeeze(1));
    const at::Tensor factor_C1 = quotient(kLabelE5M2, others_C1);
    logits_CV.mul_(factor_C1);
    logits_CV.scatter_(1, label_C1, factor_C1.eq(0).logical_not_().to(logits_CV).mul_(-kLabelE5M2));
    gradient_CV.values_RC.copy_(logits_CV);
}

}  // namespace dflash::tensor
