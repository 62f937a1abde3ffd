// SPDX-License-Identifier: Apache-2.0
// RowOps by the kernels of dflash/kernels: bf16 activations on one GPU.
#pragma once

#include <dflash/kernels/launch.hpp>
#include <dflash/kernels/row_tensor.hpp>
#include <dflash/kernels/tuned_gemm.hpp>
#include <dflash/tensor/row_ops.hpp>

#include <memory>
#include <utility>
#include <vector>

namespace dflash::tensor {

/// Gradients of rows are fp32 where Torch's path keeps them so. Kernels are asked for when they are
/// first used; one that the compile barrier was not told of is an internal error.
class KernelRowOps final : public RowOps {
  public:
    KernelRowOps(at::Device device,
                 kernels::FindKernel find_kernel,
                 std::shared_ptr<kernels::TunedGemm> gemm = nullptr);

    // Products are Torch's without `gemm`.
    void linear(const at::Tensor& y_RO,
                const at::Tensor& x_RI,
                const at::Tensor& weight_OI) override;
    void linear_add(const at::Tensor& y_RO,
                    const at::Tensor& before_RO,
                    const at::Tensor& x_RI,
                    const at::Tensor& weight_OI) override;
    void linear_backward_input(const at::Tensor& dx_RI,
                               bool add,
                               const at::Tensor& dy_RO,
                               const at::Tensor& weight_OI) override;
    void linear_backward_weight(const at::Tensor& dweight_OI,
                                const at::Tensor& dy_RO,
                                const at::Tensor& x_RI) override;

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

    // By `gemm`, or by the first algorithm that cuBLASLt proposes without it.
    void require_float8(const Float8Rows& weight_OI,
                        at::ScalarType dtype,
                        const std::string& setting) override;
    void quantize_rows(const Float8Rows& y_RC, const at::Tensor& x_RC) override;
    void float8_product(const at::Tensor& y_RO,
                        const Float8Rows& x_RI,
                        const Float8Rows& weight_OI) override;

  private:
    void product(const at::Tensor& d,
                 const at::Tensor* c,
                 const at::Tensor& a,
                 bool a_transposed,
                 const at::Tensor& b,
                 bool b_transposed);
    kernels::LoadedKernel kernel(const kernels::KernelSpec& spec);
    void take_workspace();
    kernels::WeightPartials partials(const kernels::KernelSpec& backward, std::int64_t size);
    gpu::StreamView stream() const;

    at::Device device_;
    kernels::FindKernel find_kernel_;
    std::shared_ptr<kernels::TunedGemm> gemm_;
    std::shared_ptr<kernels::TunedGemm> float8_gemm_;  // gemm_ if there is one
    at::Tensor workspace_;                             // of gemm_ and float8_gemm_
    int num_multiprocessors_;
    std::vector<std::pair<kernels::KernelSpec, kernels::LoadedKernel>> kernels_;
    at::Tensor partials_;         // fp32
    at::Tensor gradient_scales_;  // fp32, of logits in e5m2
};

}  // namespace dflash::tensor
