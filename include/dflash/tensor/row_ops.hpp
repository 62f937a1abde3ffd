// SPDX-License-Identifier: Apache-2.0
// Operations on rows of activations: products with weights, norms, rotation, the gated activation,
// the cross-entropy. By Torch operations on any device (the CPU's path, and the oracle), or by
// kernels on a GPU.
//
// R rows, H columns, N heads of D, I inner size, O outputs, C rows of V logits. Semantics are those
// of linear.hpp, rms_norm.hpp, rotary.hpp, swiglu.hpp and cross_entropy.hpp. Not thread-safe;
// asynchronous on the current stream; results are the same bits every time.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/tensor/cross_entropy.hpp>
#include <dflash/tensor/float8.hpp>
#include <dflash/tensor/rotary.hpp>

#include <ATen/ATen.h>
#include <string>

namespace dflash::tensor {

/// What the backward of a norm can leave in the same pass over its rows; null: not wanted.
struct NormByproducts {
    const at::Tensor* dx_rounded_RH = nullptr;  ///< dx as it is afterwards, in its dtype
    const at::Tensor* y_RH = nullptr;           ///< the output of the forward again
};

class RowOps : NonCopyable {
  public:
    virtual ~RowOps() = default;

    // Products: by Torch's unless a class has others.

    /// y = x W^T.
    virtual void linear(const at::Tensor& y_RO,
                        const at::Tensor& x_RI,
                        const at::Tensor& weight_OI);

    /// y = before + x W^T; y may be `before`, and must not overlap it otherwise.
    virtual void linear_add(const at::Tensor& y_RO,
                            const at::Tensor& before_RO,
                            const at::Tensor& x_RI,
                            const at::Tensor& weight_OI);

    /// dx = dy W, or dx += dy W.
    virtual void linear_backward_input(const at::Tensor& dx_RI,
                                       bool add,
                                       const at::Tensor& dy_RO,
                                       const at::Tensor& weight_OI);

    /// dW += dy^T x.
    virtual void linear_backward_weight(const at::Tensor& dweight_OI,
                                        const at::Tensor& dy_RO,
                                        const at::Tensor& x_RI);

    /// y = x r w; leaves r in `inverse_rms_R1` if given.
    virtual void rms_norm(const at::Tensor& y_RH,
                          const at::Tensor& x_RH,
                          const at::Tensor& weight_H,
                          double eps,
                          const at::Tensor* inverse_rms_R1) = 0;

    /// dx = or += the gradient of x, dweight += that of w. dy is used up; dx may be dy unless added
    /// to. Leaves byproducts where they are asked for.
    virtual void rms_norm_backward(const at::Tensor& dx_RH,
                                   bool add,
                                   const at::Tensor& dweight_H,
                                   const at::Tensor& dy_RH,
                                   const at::Tensor& x_RH,
                                   const at::Tensor& weight_H,
                                   const at::Tensor& inverse_rms_R1,
                                   const NormByproducts& also = {}) = 0;

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

    /// Its gradients; makes y again if given. dgate may be gate, dup up and y dy.
    virtual void swiglu_backward(const at::Tensor& dgate_RI,
                                 const at::Tensor& dup_RI,
                                 const at::Tensor* y_RI,
                                 const at::Tensor& dy_RI,
                                 const at::Tensor& gate_RI,
                                 const at::Tensor& up_RI) = 0;

    /// Leaves -log P(label) and the smallest index of the largest logit of every row (int64), and
    /// uses the logits (fp32, fp64 for fp64; rows a multiple of 16 bytes apart) up. With
    /// `with_gradient` what is returned holds until the next call, perhaps in their memory. With
    /// e5m2 as compute dtype the gradient has a scale for each row.
    virtual LogitsGradient cross_entropy(const at::Tensor& cross_entropy_C,
                                         const at::Tensor& argmax_C,
                                         const at::Tensor& logits_CV,
                                         const at::Tensor& label_C,
                                         at::ScalarType compute_dtype,
                                         bool with_gradient) = 0;

    // Products in 8 bits, see float8.hpp.

    /// Throws Error{Config}, naming `setting`, unless there are products of rows of `dtype` with
    /// that weight, with a result in fp32.
    virtual void require_float8(const Float8Rows& weight_OI,
                                at::ScalarType dtype,
                                const std::string& setting) = 0;

    /// y = x in e4m3.
    virtual void quantize_rows(const Float8Rows& y_RC, const at::Tensor& x_RC) = 0;

    /// y = x W^T.
    virtual void float8_product(const at::Tensor& y_RO,
                                const Float8Rows& x_RI,
                                const Float8Rows& weight_OI) = 0;

    /// The same of rows that are rounded to e4m3 first.
    void float8_linear(const at::Tensor& y_RO, const at::Tensor& x_RI, const Float8Rows& weight_OI);

  private:
    Float8Rows rounded_;  // largest seen
};

/// Torch operations. Keeps scratch of the largest heads, and of rounded gradients of logits.
class TorchRowOps final : public RowOps {
  public:
    void rms_norm(const at::Tensor& y_RH,
                  const at::Tensor& x_RH,
                  const at::Tensor& weight_H,
                  double eps,
                  const at::Tensor* inverse_rms_R1) override;
    void rms_norm_backward(const at::Tensor& dx_RH,
                           bool add,
                           const at::Tensor& dweight_H,
                           const at::Tensor& dy_RH,
                           const at::Tensor& x_RH,
                           const at::Tensor& weight_H,
                           const at::Tensor& inverse_rms_R1,
                           const NormByproducts& also = {}) override;
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
    LogitsGradient cross_entropy(const at::Tensor& cross_entropy_C,
                                 const at::Tensor& argmax_C,
                                 const at::Tensor& logits_CV,
                                 const at::Tensor& label_C,
                                 at::ScalarType compute_dtype,
                                 bool with_gradient) override;
    void require_float8(const Float8Rows& weight_OI,
                        at::ScalarType dtype,
                        const std::string& setting) override;
    void quantize_rows(const Float8Rows& y_RC, const at::Tensor& x_RC) override;
    void float8_product(const at::Tensor& y_RO,
                        const Float8Rows& x_RI,
                        const Float8Rows& weight_OI) override;

  private:
    static at::Tensor scratch(at::Tensor& memory, const at::Tensor& like, at::ScalarType dtype);

    at::Tensor heads_;
    at::Tensor gradient_;  // of logits, where products are not made in their dtype
};

}  // namespace dflash::tensor
