// SPDX-License-Identifier: Apache-2.0
// Operations on rows of activations between the products: norms, rotation, the gated activation. By
// Torch operations on any device (the CPU's path, and the oracle), or by kernels on a GPU.
//
// R rows, H columns, N heads of D, I inner size. Semantics are those of rms_norm.hpp, rotary.hpp
// and swiglu.hpp. Not thread-safe; asynchronous on the current stream; results are the same bits
// every time.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/tensor/rotary.hpp>

#include <ATen/ATen.h>

namespace dflash::tensor {

class RowOps : NonCopyable {
  public:
    virtual ~RowOps() = default;

    /// y = x r w; leaves r in `inverse_rms_R1` if given.
    virtual void rms_norm(const at::Tensor& y_RH,
                          const at::Tensor& x_RH,
                          const at::Tensor& weight_H,
                          double eps,
                          const at::Tensor* inverse_rms_R1) = 0;

    /// The same again with the r of a forward before.
    virtual void rms_norm_again(const at::Tensor& y_RH,
                                const at::Tensor& x_RH,
                                const at::Tensor& weight_H,
                                const at::Tensor& inverse_rms_R1) = 0;

    /// dx = or += the gradient of x, dweight += that of w. dy is used up; dx may be dy unless added
    /// to.
    virtual void rms_norm_backward(const at::Tensor& dx_RH,
                                   bool add,
                                   const at::Tensor& dweight_H,
                                   const at::Tensor& dy_RH,
                                   const at::Tensor& x_RH,
                                   const at::Tensor& weight_H,
                                   const at::Tensor& inverse_rms_R1) = 0;

    /// y = turned(x r w) with r per head, or turned(x) if `weight_D` is undefined; y must not
    /// overlap x. Leaves r in `inverse_rms_RN1` if given.
    virtual void head_norm(const at::Tensor& y_RND,
                           const at::Tensor& x_RND,
                           const at::Tensor& weight_D,
                           double eps,
                           const RotaryTable& rotary,
                           const at::Tensor* inverse_rms_RN1) = 0;

    /// Backward of head_norm with a weight: dx, and dweight += that of w.
    virtual void head_norm_backward(const at::Tensor& dx_RND,
                                    const at::Tensor& dweight_D,
                                    const at::Tensor& dy_RND,
                                    const at::Tensor& x_RND,
                                    const at::Tensor& weight_D,
                                    const at::Tensor& inverse_rms_RN1,
                                    const RotaryTable& rotary) = 0;

    /// y = silu(gate) up.
    virtual void swiglu(const at::Tensor& y_RI,
                        const at::Tensor& gate_RI,
                        const at::Tensor& up_RI) = 0;

    /// Its gradients; makes y again if given.
    virtual void swiglu_backward(const at::Tensor& dgate_RI,
                                 const at::Tensor& dup_RI,
                                 const at::Tensor* y_RI,
                                 const at::Tensor& dy_RI,
                                 const at::Tensor& gate_RI,
                                 const at::Tensor& up_RI) = 0;
};

/// Torch operations. Keeps one scratch tensor of the largest heads it has seen.
class TorchRowOps final : public RowOps {
  public:
    void rms_norm(const at::Tensor& y_RH,
                  const at::Tensor& x_RH,
                  const at::Tensor& weight_H,
                  double eps,
                  const at::Tensor* inverse_rms_R1) override;
    void rms_norm_again(const at::Tensor& y_RH,
                        const at::Tensor& x_RH,
                        const at::Tensor& weight_H,
                        const at::Tensor& inverse_rms_R1) override;
    void rms_norm_backward(const at::Tensor& dx_RH,
                           bool add,
                           const at::Tensor& dweight_H,
                           const at::Tensor& dy_RH,
                           const at::Tensor& x_RH,
                           const at::Tensor& weight_H,
                           const at::Tensor& inverse_rms_R1) override;
    void head_norm(const at::Tensor& y_RND,
                   const at::Tensor& x_RND,
                   const at::Tensor& weight_D,
                   double eps,
                   const RotaryTable& rotary,
                   const at::Tensor* inverse_rms_RN1) override;
    void head_norm_backward(const at::Tensor& dx_RND,
                            const at::Tensor& dweight_D,
                            const at::Tensor& dy_RND,
                            const at::Tensor& x_RND,
                            const at::Tensor& weight_D,
                            const at::Tensor& inverse_rms_RN1,
                            const RotaryTable& rotary) override;
    void swiglu(const at::Tensor& y_RI,
                const at::Tensor& gate_RI,
                const at::Tensor& up_RI) override;
    void swiglu_backward(const at::Tensor& dgate_RI,
                         const at::Tensor& dup_RI,
                         const at::Tensor* y_RI,
                         const at::Tensor& dy_RI,
                         const at::Tensor& gate_RI,
                         const at::Tensor& up_RI) override;

  private:
    at::Tensor scratch(const at::Tensor& like, at::ScalarType dtype);

    at::Tensor scratch_;
};

}  // namespace dflash::tensor
