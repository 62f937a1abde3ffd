// SPDX-License-Identifier: Apache-2.0
// The head's products in 8 bits on a GPU beside the CPU's, which has the same roundings.
#include "../golden_check/gpu_kernels.hpp"

#include <dflash/core/error.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/kernels/quantize_rows.hpp>
#include <dflash/tensor/float8.hpp>
#include <dflash/tensor/kernel_row_ops.hpp>

#include <doctest/doctest.h>
#include <string>

namespace dflash::model {
namespace {

using tensor::Float8Rows;

double difference(const at::Tensor& got, const at::Tensor& expected) {
    const at::Tensor a = got.cpu().to(at::kFloat).to(at::kDouble);
    const at::Tensor b = expected.to(at::kFloat).to(at::kDouble);
    return ((a - b).norm() / b.norm()).item<double>();
}

TEST_SUITE("model.head_precision_gpu") {
    TEST_CASE("rows, logits, loss and gradient in 8 bits are the CPU's") {
        golden::GpuKernels kernels(gpu::parse_devices("0").front());
        if (!kernels::has_float8(kernels.architecture())) {
            MESSAGE("this GPU has no 8-bit numbers");
            return;
        }
        const at::Device device(at::kCUDA, 0);
        tensor::KernelRowOps ops(
            device, [&](const kernels::KernelSpec& spec) { return kernels.find(spec); });
        tensor::TorchRowOps oracle;
        at::manual_seed(9);
        constexpr std::int64_t kV = 12816;
        constexpr std::int64_t kH = 192;
        constexpr std::int64_t kC = 77;
        const at::Tensor head_VH =
            (at::randn({kV, kH}) * 0.1 + at::randn({kH}) * 0.03).to(at::kBFloat16);
        const at::Tensor z_CH = (at::randn({kC, kH}) * 2).to(at::kBFloat16);
        const at::Tensor label_C = at::randint(kV, {kC}, at::kLong);

        const Float8Rows words = tensor::empty_float8_rows(kV, kH, at::kCPU);
        const Float8Rows columns = tensor::empty_float8_rows(kH, kV, at::kCPU);
        oracle.quantize_rows(words, head_VH);
        oracle.quantize_rows(columns, head_VH.t().contiguous());
        const Float8Rows gpu_words = tensor::empty_float8_rows(kV, kH, device);
        const Float8Rows gpu_columns = tensor::empty_float8_rows(kH, kV, device);
        try {
            ops.require_float8(gpu_words, at::kFloat8_e4m3fn, "a test");
            ops.require_float8(gpu_columns, at::kFloat8_e5m2, "a test");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Config);
            MESSAGE(error.parts().what, " (", error.parts().where, ")");
            return;
        }
        ops.quantize_rows(gpu_words, head_VH.to(device));
        ops.quantize_rows(gpu_columns, head_VH.to(device).t().contiguous());
        CHECK(gpu_words.values_RC.cpu().view(at::kByte).equal(words.values_RC.view(at::kByte)));
        CHECK(gpu_words.scale_R.cpu().equal(words.scale_R));
        CHECK(gpu_columns.values_RC.cpu().view(at::kByte).equal(columns.values_RC.view(at::kByte)));
        CHECK(gpu_columns.scale_R.cpu().equal(columns.scale_R));

        const at::Tensor logits_CV = at::empty({kC, kV});
        const at::Tensor gpu_logits_CV = at::empty({kC, kV}, logits_CV.options().device(device));
        oracle.float8_linear(logits_CV, z_CH, words);
        ops.float8_linear(gpu_logits_CV, z_CH.to(device), gpu_words);
        CHECK(difference(gpu_logits_CV, logits_CV) < 5e-4);
        // From here on the same logits, so that roundings are of the same numbers.
        gpu_logits_CV.copy_(logits_CV);

        const at::Tensor loss_C = at::empty({kC});
        const at::Tensor argmax_C = at::empty({kC}, at::kLong);
        const at::Tensor gpu_loss_C = loss_C.to(device);
        const at::Tensor gpu_argmax_C = argmax_C.to(device);
        const tensor::LogitsGradient gradient = oracle.cross_entropy(
            loss_C, argmax_C, logits_CV, label_C, at::kFloat8_e5m2, /*with_gradient=*/true);
        const tensor::LogitsGradient gpu_gradient = ops.cross_entropy(gpu_loss_C,
                                                                      gpu_argmax_C,
                                                                      gpu_logits_CV,
                                                                      label_C.to(device),
                                                                      at::kFloat8_e5m2,
                                                                      /*with_gradient=*/true);
        CHECK(difference(gpu_loss_C, loss_C) < 1e-5);
        CHECK(gpu_argmax_C.cpu().equal(argmax_C));
        CHECK(difference(gpu_gradient.scale_C, gradient.scale_C) < 1e-5);
        // Numbers beside a tie may fall on its other side.
        CHECK(difference(gpu_gradient.gradient_CV, gradient.gradient_CV) < 2e-3);

        const at::Tensor dz_CH = at::empty({kC, kH});
        const at::Tensor gpu_dz_CH = dz_CH.to(device);
        oracle.float8_product(dz_CH, {gradient.gradient_CV, gradient.scale_C}, columns);
        ops.float8_product(
            gpu_dz_CH, {gpu_gradient.gradient_CV, gpu_gradient.scale_C}, gpu_columns);
        CHECK(difference(gpu_dz_CH, dz_CH) < 3e-3);
    }
}

}  // namespace
}  // namespace dflash::model
