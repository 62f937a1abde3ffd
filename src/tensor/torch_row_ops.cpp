// SPDX-License-Identifier: Apache-2.0
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/rms_norm.hpp>
#include <dflash/tensor/row_ops.hpp>
#include <dflash/tensor/swiglu.hpp>

namespace dflash::tensor {

void TorchRowOps::rms_norm(const at::Tensor& y_RH,
                           const at::Tensor& x_RH,
                           const at::Tensor& weight_H,
                           double eps,
                           const at::Tensor* inverse_rms_R1) {
    rms_norm_out(y_RH, x_RH, weight_H, eps, inverse_rms_R1);
}

void TorchRowOps::rms_norm_again(const at::Tensor& y_RH,
                                 const at::Tensor& x_RH,
                                 const at::Tensor& weight_H,
                                 const at::Tensor& inverse_rms_R1) {
    tensor::rms_norm_again(y_RH, x_RH, weight_H, inverse_rms_R1);
}

void TorchRowOps::rms_norm_backward(const at::Tensor& dx_RH,
                                    bool add,
                                    const at::Tensor& dweight_H,
                                    const at::Tensor& dy_RH,
                                    const at::Tensor& x_RH,
                                    const at::Tensor& weight_H,
                                    const at::Tensor& inverse_rms_R1) {
    tensor::rms_norm_backward(dx_RH, add, dweight_H, dy_RH, x_RH, weight_H, inverse_rms_R1);
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
    const at::Tensor normed_RND = scratch(y_RND, y_RND.scalar_type());
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
    const at::Tensor dnormed_RND = scratch(dy_RND, inverse_rms_RN1.scalar_type());
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

at::Tensor TorchRowOps::scratch(const at::Tensor& like, at::ScalarType dtype) {
    if (!scratch_.defined() || scratch_.numel() < like.numel() || scratch_.scalar_type() != dtype ||
        scratch_.device() != like.device()) {
        scratch_ = at::Tensor();  // give the old memory back before asking for more
        scratch_ = at::empty({like.numel()}, like.options().dtype(dtype));
    }
    return scratch_.narrow(0, 0, like.numel()).view(like.sizes());
}

}  // namespace dflash::tensor
