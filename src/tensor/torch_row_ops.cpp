// SPDX-License-Identifier: Apache-2.0
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/linear.hpp>
#include <dflash/tensor/rms_norm.hpp>
#include <dflash/tensor/row_ops.hpp>
#include <dflash/tensor/swiglu.hpp>

#include <utility>

namespace dflash::tensor {

void RowOps::linear(const at::Tensor& y_RO, const at::Tensor& x_RI, const at::Tensor& weight_OI) {
    linear_out(y_RO, x_RI, weight_OI);
}

void RowOps::linear_add(const at::Tensor& y_RO,
                        const at::Tensor& before_RO,
                        const at::Tensor& x_RI,
                        const at::Tensor& weight_OI) {
    if (!y_RO.is_same(before_RO)) {
        y_RO.copy_(before_RO);
    }
    tensor::linear_add(y_RO, x_RI, weight_OI);
}

void RowOps::linear_backward_input(const at::Tensor& dx_RI,
                                   bool add,
                                   const at::Tensor& dy_RO,
                                   const at::Tensor& weight_OI) {
    if (add) {
        linear_backward_input_add(dx_RI, dy_RO, weight_OI);
    } else {
        linear_backward_input_out(dx_RI, dy_RO, weight_OI);
    }
}

void RowOps::linear_backward_weight(const at::Tensor& dweight_OI,
                                    const at::Tensor& dy_RO,
                                    const at::Tensor& x_RI) {
    linear_backward_weight_add(dweight_OI, dy_RO, x_RI);
}

void RowOps::float8_linear(const at::Tensor& y_RO,
                           const at::Tensor& x_RI,
                           const Float8Rows& weight_OI) {
    const std::int64_t rows = x_RI.size(0);
    if (!rounded_.defined() || rounded_.values_RC.size(0) < rows ||
        rounded_.values_RC.size(1) != x_RI.size(1)) {
        rounded_ = {};  // give the old memory back before asking for more
        rounded_ = empty_float8_rows(rows, x_RI.size(1), x_RI.device());
    }
    const Float8Rows x = rounded_.narrow(0, rows);
    quantize_rows(x, x_RI);
    float8_product(y_RO, x, weight_OI);
}

void TorchRowOps::rms_norm(const at::Tensor& y_RH,
                           const at::Tensor& x_RH,
                           const at::Tensor& weight_H,
                           double eps,
                           const at::Tensor* inverse_rms_R1) {
    rms_norm_out(y_RH, x_RH, weight_H, eps, inverse_rms_R1);
}

void TorchRowOps::rms_norm_backward(const at::Tensor& dx_RH,
                                    bool add,
                                    const at::Tensor& dweight_H,
                                    const at::Tensor& dy_RH,
                                    const at::Tensor& x_RH,
                                    const at::Tensor& weight_H,
                                    const at::Tensor& inverse_rms_R1,
                                    const NormByproducts& also) {
    tensor::rms_norm_backward(dx_RH, add, dweight_H, dy_RH, x_RH, weight_H, inverse_rms_R1);
    if (also.dx_rounded_RH != nullptr) {
        also.dx_rounded_RH->copy_(dx_RH);
    }
    if (also.y_RH != nullptr) {
        rms_norm_again(*also.y_RH, x_RH, weight_H, inverse_rms_R1);
    }
}

void TorchRowOps::head_norm(const at::Tensor& y_RND,
                            const at::Tensor& x_RND,
                            const at::Tensor& weight_D,
                            double eps,
                            const RotaryTable& rotary,
                            const at::Tensor* inverse_rms_RN1) {
    if (!weight_D.defined()) {
        rotary_out(y_RND, x_RND, rotary);
        return;
    }
    const at::Tensor normed_RND = scratch(heads_, y_RND, y_RND.scalar_type());
    rms_norm_out(normed_RND, x_RND, weight_D, eps, inverse_rms_RN1);
    rotary_out(y_RND, normed_RND, rotary);
}

void TorchRowOps::head_norm_backward(const at::Tensor& dx_RND,
                                     const at::Tensor& dweight_D,
                                     const at::Tensor& dy_RND,
                                     const at::Tensor& x_RND,
                                     const at::Tensor& weight_D,
                                     const at::Tensor& inverse_rms_RN1,
                                     const RotaryTable& rotary) {
    const at::Tensor dnormed_RND = scratch(heads_, dy_RND, inverse_rms_RN1.scalar_type());
    rotary_inverse_out(dnormed_RND, dy_RND, rotary);
    tensor::rms_norm_backward(
        dx_RND, /*add=*/false, dweight_D, dnormed_RND, x_RND, weight_D, inverse_rms_RN1);
}

void TorchRowOps::swiglu(const at::Tensor& y_RI,
                         const at::Tensor& gate_RI,
                         const at::Tensor& up_RI) {
    swiglu_out(y_RI, gate_RI, up_RI);
}

void TorchRowOps::swiglu_backward(const at::Tensor& dgate_RI,
                                  const at::Tensor& dup_RI,
                                  const at::Tensor* y_RI,
                                  const at::Tensor& dy_RI,
                                  const at::Tensor& gate_RI,
                                  const at::Tensor& up_RI) {
    swiglu_backward_out(dgate_RI, dup_RI, y_RI, dy_RI, gate_RI, up_RI);
}

LogitsGradient TorchRowOps::cross_entropy(const at::Tensor& cross_entropy_C,
                                          const at::Tensor& argmax_C,
                                          const at::Tensor& logits_CV,
                                          const at::Tensor& label_C,
                                          at::ScalarType compute_dtype,
                                          bool with_gradient) {
    at::Tensor total_C1 = cross_entropy_out(cross_entropy_C, argmax_C, logits_CV, label_C);
    if (!with_gradient) {
        return {};
    }
    if (compute_dtype == logits_CV.scalar_type()) {
        return {.gradient_CV = logits_CV, .divisor_C1 = std::move(total_C1)};
    }
    at::Tensor gradient_CV = scratch(gradient_, logits_CV, compute_dtype);
    if (compute_dtype == at::kFloat8_e5m2) {
        at::Tensor scale_C = at::empty({logits_CV.size(0)}, logits_CV.options().dtype(at::kFloat));
        float8_gradient_out({gradient_CV, scale_C}, logits_CV, label_C, total_C1);
        return {.gradient_CV = std::move(gradient_CV), .scale_C = std::move(scale_C)};
    }
    gradient_CV.copy_(logits_CV);
    return {.gradient_CV = std::move(gradient_CV), .divisor_C1 = std::move(total_C1)};
}

void TorchRowOps::require_float8(const Float8Rows& /*weight_OI*/,
                                 at::ScalarType /*dtype*/,
                                 const std::string& /*setting*/) {}

void TorchRowOps::quantize_rows(const Float8Rows& y_RC, const at::Tensor& x_RC) {
    quantize_rows_out(y_RC, x_RC);
}

void TorchRowOps::float8_product(const at::Tensor& y_RO,
                                 const Float8Rows& x_RI,
                                 const Float8Rows& weight_OI) {
    float8_product_out(y_RO, x_RI, weight_OI);
}

at::Tensor TorchRowOps::scratch(at::Tensor& memory, const at::Tensor& like, at::ScalarType dtype) {
    if (!memory.defined() || memory.numel() < like.numel() || memory.scalar_type() != dtype ||
        memory.device() != like.device()) {
        memory = at::Tensor();  // give the old memory back before asking for more
        memory = at::empty({like.numel()}, like.options().dtype(dtype));
    }
    return memory.narrow(0, 0, like.numel()).view(like.sizes());
}

}  // namespace dflash::tensor
