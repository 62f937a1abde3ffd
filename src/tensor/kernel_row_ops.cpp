// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/kernels/head_norm.hpp>
#include <dflash/kernels/rms_norm.hpp>
#include <dflash/kernels/swiglu.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/kernel_row_ops.hpp>

#include <algorithm>
#include <utility>

namespace dflash::tensor {
namespace {

kernels::Element element(const at::Tensor& x) {
    if (x.scalar_type() == at::kFloat) {
        return kernels::Element::Float32;
    }
    expect_dtype(x, at::kBFloat16, "rows of the kernels");
    return kernels::Element::BFloat16;
}

/// Rows of columns, or of heads that follow each other.
kernels::RowTensor rows(const at::Tensor& x) {
    DFLASH_CHECK(x.stride(-1) == 1 && (x.dim() == 2 || x.stride(1) == x.size(2)),
                 "rows with columns or heads apart");
    return {x.data_ptr(), x.stride(0), element(x)};
}

const float* floats(const at::Tensor& x) {
    expect_dtype(x, at::kFloat, "statistics of the kernels");
    DFLASH_CHECK(x.is_contiguous(), "statistics with gaps");
    return x.data_ptr<float>();
}

float* writable_floats(const at::Tensor& x) {
    static_cast<void>(floats(x));
    return x.data_ptr<float>();
}

const void* weight(const at::Tensor& weight) {
    expect_dtype(weight, at::kBFloat16, "weight of a norm");
    return weight.data_ptr();
}

kernels::RotaryRows rotary_rows(const RotaryTable& table) {
    DFLASH_CHECK(table.cos_RF.stride(0) == table.sin_RF.stride(0) && table.cos_RF.stride(1) == 1,
                 "rotary table with gaps");
    return {table.cos_RF.data_ptr<float>(), table.sin_RF.data_ptr<float>(), table.cos_RF.stride(0)};
}

kernels::HeadNormShape head_shape(const at::Tensor& x_RND, const RotaryTable& rotary) {
    const std::int64_t turned = 2 * rotary.cos_RF.size(1);
    return {.head_dim = x_RND.size(2), .rotary_columns = turned == x_RND.size(2) ? 0 : turned};
}

}  // namespace

KernelRowOps::KernelRowOps(at::Device device, kernels::FindKernel find_kernel)
    : device_(device),
      find_kernel_(std::move(find_kernel)),
      num_multiprocessors_(gpu::num_multiprocessors(device.index())) {}

void KernelRowOps::rms_norm(const at::Tensor& y_RH,
                            const at::Tensor& x_RH,
                            const at::Tensor& weight_H,
                            double eps,
                            const at::Tensor* inverse_rms_R1) {
    kernels::rms_norm_forward(
        kernel(kernels::rms_norm_forward_kernel({.hidden = x_RH.size(1), .x = element(x_RH)})),
        {.x_RH = rows(x_RH),
         .y_RH = rows(y_RH),
         .weight_H = weight(weight_H),
         .inverse_rms_R = inverse_rms_R1 == nullptr ? nullptr : writable_floats(*inverse_rms_R1)},
        x_RH.size(0),
        eps,
        stream());
}

void KernelRowOps::rms_norm_again(const at::Tensor& y_RH,
                                  const at::Tensor& x_RH,
                                  const at::Tensor& weight_H,
                                  const at::Tensor& inverse_rms_R1) {
    kernels::rms_norm_forward(
        kernel(kernels::rms_norm_forward_kernel({.hidden = x_RH.size(1), .x = element(x_RH)})),
        {.x_RH = rows(x_RH),
         .y_RH = rows(y_RH),
         .weight_H = weight(weight_H),
         .known_inverse_rms_R = floats(inverse_rms_R1)},
        x_RH.size(0),
        /*eps=*/0,
        stream());
}

void KernelRowOps::rms_norm_backward(const at::Tensor& dx_RH,
                                     bool add,
                                     const at::Tensor& dweight_H,
                                     const at::Tensor& dy_RH,
                                     const at::Tensor& x_RH,
                                     const at::Tensor& weight_H,
                                     const at::Tensor& inverse_rms_R1) {
    const kernels::KernelSpec spec = kernels::rms_norm_backward_kernel({.hidden = x_RH.size(1),
                                                                        .x = element(x_RH),
                                                                        .dy = element(dy_RH),
                                                                        .dx = element(dx_RH),
                                                                        .add = add});
    kernels::rms_norm_backward(kernel(spec),
                               kernel(kernels::norm_weight_gradient_kernel()),
                               {.dy_RH = rows(dy_RH),
                                .x_RH = rows(x_RH),
                                .weight_H = weight(weight_H),
                                .inverse_rms_R = floats(inverse_rms_R1),
                                .dx_RH = rows(dx_RH),
                                .dweight_H = writable_floats(dweight_H)},
                               x_RH.size(0),
                               partials(spec, x_RH.size(1)),
                               stream());
}

void KernelRowOps::head_norm(const at::Tensor& y_RND,
                             const at::Tensor& x_RND,
                             const at::Tensor& weight_D,
                             double eps,
                             const RotaryTable& rotary,
                             const at::Tensor* inverse_rms_RN1) {
    const bool norm = weight_D.defined();
    kernels::head_norm_forward(
        kernel(kernels::head_norm_forward_kernel(head_shape(x_RND, rotary), norm)),
        {.x_RND = rows(x_RND),
         .y_RND = rows(y_RND),
         .weight_D = norm ? weight(weight_D) : nullptr,
         .rotary = rotary_rows(rotary),
         .inverse_rms_RN =
             inverse_rms_RN1 == nullptr ? nullptr : writable_floats(*inverse_rms_RN1)},
        x_RND.size(0),
        x_RND.size(1),
        eps,
        stream());
}

void KernelRowOps::head_norm_backward(const at::Tensor& dx_RND,
                                      const at::Tensor& dweight_D,
                                      const at::Tensor& dy_RND,
                                      const at::Tensor& x_RND,
                                      const at::Tensor& weight_D,
                                      const at::Tensor& inverse_rms_RN1,
                                      const RotaryTable& rotary) {
    const kernels::KernelSpec spec =
        kernels::head_norm_backward_kernel(head_shape(x_RND, rotary), element(dy_RND));
    kernels::head_norm_backward(kernel(spec),
                                kernel(kernels::norm_weight_gradient_kernel()),
                                {.dy_RND = rows(dy_RND),
                                 .x_RND = rows(x_RND),
                                 .weight_D = weight(weight_D),
                                 .inverse_rms_RN = floats(inverse_rms_RN1),
                                 .rotary = rotary_rows(rotary),
                                 .dx_RND = rows(dx_RND),
                                 .dweight_D = writable_floats(dweight_D)},
                                x_RND.size(0),
                                x_RND.size(1),
                                partials(spec, x_RND.size(2)),
                                stream());
}

void KernelRowOps::swiglu(const at::Tensor& y_RI,
                          const at::Tensor& gate_RI,
                          const at::Tensor& up_RI) {
    kernels::swiglu_forward(kernel(kernels::swiglu_forward_kernel()),
                            {.gate_RI = rows(gate_RI), .up_RI = rows(up_RI), .y_RI = rows(y_RI)},
                            gate_RI.size(0),
                            gate_RI.size(1),
                            stream());
}

void KernelRowOps::swiglu_backward(const at::Tensor& dgate_RI,
                                   const at::Tensor& dup_RI,
                                   const at::Tensor* y_RI,
                                   const at::Tensor& dy_RI,
                                   const at::Tensor& gate_RI,
                                   const at::Tensor& up_RI) {
    kernels::swiglu_backward(kernel(kernels::swiglu_backward_kernel()),
                             {.dy_RI = rows(dy_RI),
                              .gate_RI = rows(gate_RI),
                              .up_RI = rows(up_RI),
                              .dgate_RI = rows(dgate_RI),
                              .dup_RI = rows(dup_RI),
                              .y_RI = y_RI == nullptr ? kernels::RowTensor{} : rows(*y_RI)},
                             gate_RI.size(0),
                             gate_RI.size(1),
                             stream());
}

kernels::LoadedKernel KernelRowOps::kernel(const kernels::KernelSpec& spec) {
    auto found = std::find_if(
        kernels_.begin(), kernels_.end(), [&](const auto& known) { return known.first == spec; });
    if (found == kernels_.end()) {
        found = kernels_.emplace(kernels_.end(), spec, find_kernel_(spec));
    }
    return found->second;
}

kernels::WeightPartials KernelRowOps::partials(const kernels::KernelSpec& backward,
                                               std::int64_t size) {
    const std::int64_t count = kernels::weight_partials_count(backward, num_multiprocessors_);
    if (!partials_.defined() || partials_.numel() < count * size) {
        partials_ = at::Tensor();  // give the old memory back before asking for more
        partials_ = at::empty({count * size}, at::TensorOptions(device_).dtype(at::kFloat));
    }
    return {partials_.data_ptr<float>(), count};
}

gpu::StreamView KernelRowOps::stream() const {
    return current_stream(device_);
}

}  // namespace dflash::tensor
