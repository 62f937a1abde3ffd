// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/kernels/cross_entropy.hpp>
#include <dflash/kernels/gemm.hpp>
#include <dflash/kernels/head_norm.hpp>
#include <dflash/kernels/quantize_rows.hpp>
#include <dflash/kernels/rms_norm.hpp>
#include <dflash/kernels/swiglu.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/kernel_row_ops.hpp>

#include <algorithm>
#include <utility>

namespace dflash::tensor {
namespace {

kernels::Element element(const at::Tensor& x) {
    switch (x.scalar_type()) {
        case at::kFloat:
            return kernels::Element::Float32;
        case at::kFloat8_e4m3fn:
            return kernels::Element::Float8E4M3;
        case at::kFloat8_e5m2:
            return kernels::Element::Float8E5M2;
        default:
            expect_dtype(x, at::kBFloat16, "rows of the kernels");
            return kernels::Element::BFloat16;
    }
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

KernelRowOps::KernelRowOps(at::Device device,
                           kernels::FindKernel find_kernel,
                           std::shared_ptr<kernels::TunedGemm> gemm)
    : device_(device),
      find_kernel_(std::move(find_kernel)),
      gemm_(std::move(gemm)),
      num_multiprocessors_(gpu::num_multiprocessors(device.index())) {
    if (gemm_ != nullptr) {
        take_workspace();
    }
}

void KernelRowOps::take_workspace() {
    workspace_ = at::empty({kernels::TunedGemm::kWorkspaceBytes},
                           at::TensorOptions(device_).dtype(at::kByte));
}

void KernelRowOps::linear(const at::Tensor& y_RO,
                          const at::Tensor& x_RI,
                          const at::Tensor& weight_OI) {
    if (gemm_ == nullptr) {
        RowOps::linear(y_RO, x_RI, weight_OI);
        return;
    }
    product(y_RO, nullptr, x_RI, /*a_transposed=*/false, weight_OI, /*b_transposed=*/true);
}

void KernelRowOps::linear_add(const at::Tensor& y_RO,
                              const at::Tensor& before_RO,
                              const at::Tensor& x_RI,
                              const at::Tensor& weight_OI) {
    if (gemm_ == nullptr) {
        RowOps::linear_add(y_RO, before_RO, x_RI, weight_OI);
        return;
    }
    product(y_RO, &before_RO, x_RI, /*a_transposed=*/false, weight_OI, /*b_transposed=*/true);
}

void KernelRowOps::linear_backward_input(const at::Tensor& dx_RI,
                                         bool add,
                                         const at::Tensor& dy_RO,
                                         const at::Tensor& weight_OI) {
    if (gemm_ == nullptr) {
        RowOps::linear_backward_input(dx_RI, add, dy_RO, weight_OI);
        return;
    }
    product(dx_RI, add ? &dx_RI : nullptr, dy_RO, false, weight_OI, /*b_transposed=*/false);
}

void KernelRowOps::linear_backward_weight(const at::Tensor& dweight_OI,
                                          const at::Tensor& dy_RO,
                                          const at::Tensor& x_RI) {
    if (gemm_ == nullptr) {
        RowOps::linear_backward_weight(dweight_OI, dy_RO, x_RI);
        return;
    }
    product(dweight_OI, &dweight_OI, dy_RO, /*a_transposed=*/true, x_RI, /*b_transposed=*/false);
}

void KernelRowOps::product(const at::Tensor& d,
                           const at::Tensor* c,
                           const at::Tensor& a,
                           bool a_transposed,
                           const at::Tensor& b,
                           bool b_transposed) {
    const kernels::GemmShape shape{.m = a.size(a_transposed ? 1 : 0),
                                   .n = b.size(b_transposed ? 0 : 1),
                                   .k = a.size(a_transposed ? 0 : 1),
                                   .a_transposed = a_transposed,
                                   .b_transposed = b_transposed,
                                   .result = element(d),
                                   .add = c != nullptr};
    expect_shape(d, {shape.m, shape.n}, "result of a product");
    expect_shape(b,
                 {b_transposed ? shape.n : shape.k, b_transposed ? shape.k : shape.n},
                 "second operand of a product");
    expect_dtype(a, at::kBFloat16, "first operand of a product");
    expect_dtype(b, at::kBFloat16, "second operand of a product");
    gemm_->multiply(shape,
                    {.a = rows(a),
                     .b = rows(b),
                     .c = c == nullptr ? kernels::RowTensor{} : rows(*c),
                     .d = rows(d)},
                    workspace_.data_ptr(),
                    stream());
}

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

void KernelRowOps::rms_norm_backward(const at::Tensor& dx_RH,
                                     bool add,
                                     const at::Tensor& dweight_H,
                                     const at::Tensor& dy_RH,
                                     const at::Tensor& x_RH,
                                     const at::Tensor& weight_H,
                                     const at::Tensor& inverse_rms_R1,
                                     const NormByproducts& also) {
    const auto optional = [](const at::Tensor* x) {
        return x == nullptr ? kernels::RowTensor{} : rows(*x);
    };
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
                                .dx_rounded_RH = optional(also.dx_rounded_RH),
                                .y_RH = optional(also.y_RH),
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

LogitsGradient KernelRowOps::cross_entropy(const at::Tensor& cross_entropy_C,
                                           const at::Tensor& argmax_C,
                                           const at::Tensor& logits_CV,
                                           const at::Tensor& label_C,
                                           at::ScalarType compute_dtype,
                                           bool with_gradient) {
    expect_dtype(logits_CV, at::kFloat, "logits of the kernel");
    expect_dtype(label_C, at::kLong, "labels of the kernel");
    expect_dtype(argmax_C, at::kLong, "argmax of the kernel");
    const bool is_float8 = with_gradient && compute_dtype == at::kFloat8_e5m2;
    DFLASH_CHECK((is_float8 || compute_dtype == at::kBFloat16) && label_C.is_contiguous() &&
                     argmax_C.is_contiguous(),
                 "the kernel makes gradients in bf16 or e5m2 for labels without gaps");
    LogitsGradient result;
    if (with_gradient) {
        // The first half or quarter of every row's memory.
        result.gradient_CV = logits_CV.view(compute_dtype).narrow(1, 0, logits_CV.size(1));
    }
    if (is_float8) {
        if (!gradient_scales_.defined() || gradient_scales_.numel() < logits_CV.size(0)) {
            gradient_scales_ = at::empty({logits_CV.size(0)}, logits_CV.options());
        }
        result.scale_C = gradient_scales_.narrow(0, 0, logits_CV.size(0));
    }
    kernels::cross_entropy(
        kernel(kernels::cross_entropy_kernel(
            kernels::Element::Float32,
            is_float8 ? kernels::Element::Float8E5M2 : kernels::Element::BFloat16)),
        {.logits_CV = rows(logits_CV),
         .label_C = label_C.data_ptr<std::int64_t>(),
         .cross_entropy_C = writable_floats(cross_entropy_C),
         .argmax_C = argmax_C.data_ptr<std::int64_t>(),
         .gradient_CV = with_gradient ? rows(result.gradient_CV) : kernels::RowTensor{},
         .gradient_scale_C = is_float8 ? writable_floats(result.scale_C) : nullptr},
        logits_CV.size(0),
        logits_CV.size(1),
        stream());
    return result;
}

void KernelRowOps::require_float8(const Float8Rows& weight_OI,
                                  at::ScalarType dtype,
                                  const std::string& setting) {
    const std::int64_t outputs = weight_OI.values_RC.size(0);
    const std::int64_t inner = weight_OI.values_RC.size(1);
    // Stand-ins of full tiles: neither is touched.
    constexpr std::int64_t kRows = 256;
    const kernels::RowTensor weight = rows(weight_OI.values_RC);
    const kernels::GemmShape shape{.m = kRows,
                                   .n = outputs,
                                   .k = inner,
                                   .b_transposed = true,
                                   .result = kernels::Element::Float32,
                                   .a = dtype == at::kFloat8_e5m2 ? kernels::Element::Float8E5M2
                                                                  : kernels::Element::Float8E4M3,
                                   .b = weight.element};
    const float* const scales = floats(weight_OI.scale_R);
    const kernels::GemmMatrices matrices{.a = {weight.data, inner, shape.a},
                                         .b = weight,
                                         .d = {weight.data, outputs, kernels::Element::Float32},
                                         .a_scale = scales,
                                         .b_scale = scales};
    kernels::Gemm().require_float8(shape, matrices, kernels::TunedGemm::kWorkspaceBytes, setting);
}

void KernelRowOps::quantize_rows(const Float8Rows& y_RC, const at::Tensor& x_RC) {
    expect_shape(y_RC.values_RC, {x_RC.size(0), x_RC.size(1)}, "rows of 8 bits");
    kernels::quantize_rows(kernel(kernels::quantize_rows_kernel()),
                           rows(y_RC.values_RC),
                           writable_floats(y_RC.scale_R),
                           rows(x_RC),
                           x_RC.size(0),
                           x_RC.size(1),
                           stream());
}

void KernelRowOps::float8_product(const at::Tensor& y_RO,
                                  const Float8Rows& x_RI,
                                  const Float8Rows& weight_OI) {
    if (float8_gemm_ == nullptr) {
        float8_gemm_ = gemm_;
        if (float8_gemm_ == nullptr) {
            float8_gemm_ = std::make_shared<kernels::TunedGemm>(nullptr);  // guesses
            take_workspace();
        }
    }
    const kernels::RowTensor x = rows(x_RI.values_RC);
    const kernels::RowTensor weight = rows(weight_OI.values_RC);
    const kernels::GemmShape shape{.m = x_RI.values_RC.size(0),
                                   .n = weight_OI.values_RC.size(0),
                                   .k = weight_OI.values_RC.size(1),
                                   .b_transposed = true,
                                   .result = element(y_RO),
                                   .a = x.element,
                                   .b = weight.element};
    expect_shape(y_RO, {shape.m, shape.n}, "result of a product in fp8");
    expect_shape(x_RI.values_RC, {shape.m, shape.k}, "rows of a product in fp8");
    float8_gemm_->multiply(shape,
                           {.a = x,
                            .b = weight,
                            .d = rows(y_RO),
                            .a_scale = floats(x_RI.scale_R),
                            .b_scale = floats(weight_OI.scale_R)},
                           workspace_.data_ptr(),
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
