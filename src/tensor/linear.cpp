// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/linear.hpp>

namespace dflash::tensor {
namespace {

/// Whether the result keeps more bits than the operands have.
bool is_wider(const at::Tensor& result, const at::Tensor& operand) {
    if (result.scalar_type() == operand.scalar_type()) {
        return false;
    }
    expect_dtype(result, sum_dtype(operand.scalar_type()), "result of a product");
    return true;
}

/// result = a b, or result += a b. Products of bf16 operands with an fp32 result go to the mixed
/// GEMM on CUDA, whose sums are fp32; the CPU has none, so there the operands are converted
/// (exact).
void product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b, bool add) {
    at::Tensor out = result;
    if (!is_wider(result, a)) {
        if (add) {
            out.addmm_(a, b);
        } else {
            at::mm_out(out, a, b);
        }
    } else if (result.device().is_cuda()) {
        if (add) {
            at::addmm_out(out, out, a, b, result.scalar_type());
        } else if (out.is_contiguous()) {
            at::mm_out(out, a, b, result.scalar_type());
        } else {
            out.copy_(at::mm(a, b, result.scalar_type()));
        }
    } else {
        product(result, a.to(result.scalar_type()), b.to(result.scalar_type()), add);
    }
}

}  // namespace

at::Tensor linear(const at::Tensor& x_RI, const at::Tensor& weight_OI) {
    return at::mm(x_RI, weight_OI.t());
}

void linear_out(const at::Tensor& y_RO, const at::Tensor& x_RI, const at::Tensor& weight_OI) {
    expect_shape(y_RO, {x_RI.size(0), weight_OI.size(0)}, "y of a linear layer");
    product(y_RO, x_RI, weight_OI.t(), /*add=*/false);
}

void linear_add(const at::Tensor& y_RO, const at::Tensor& x_RI, const at::Tensor& weight_OI) {
    expect_shape(y_RO, {x_RI.size(0), weight_OI.size(0)}, "y of a linear layer");
    product(y_RO, x_RI, weight_OI.t(), /*add=*/true);
}

void linear_backward_input_out(const at::Tensor& dx_RI,
                               const at::Tensor& dy_RO,
                               const at::Tensor& weight_OI) {
    expect_shape(dx_RI, {dy_RO.size(0), weight_OI.size(1)}, "dx of a linear layer");
    product(dx_RI, dy_RO, weight_OI, /*add=*/false);
}

void linear_backward_input_add(const at::Tensor& dx_RI,
                               const at::Tensor& dy_RO,
                               const at::Tensor& weight_OI) {
    expect_shape(dx_RI, {dy_RO.size(0), weight_OI.size(1)}, "dx of a linear layer");
    product(dx_RI, dy_RO, weight_OI, /*add=*/true);
}

void linear_backward_weight_add(const at::Tensor& dweight_OI,
                                const at::Tensor& dy_RO,
                                const at::Tensor& x_RI) {
    expect_shape(dweight_OI, {dy_RO.size(1), x_RI.size(1)}, "dW of a linear layer");
    expect_dtype(dweight_OI, sum_dtype(x_RI.scalar_type()), "dW of a linear layer");
    product(dweight_OI, dy_RO.t(), x_RI, /*add=*/true);
}

}  // namespace dflash::tensor
