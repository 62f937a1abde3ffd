// SPDX-License-Identifier: Apache-2.0
#include <dflash/tensor/float8.hpp>
#include <dflash/tensor/row_ops.hpp>

#include <cmath>
#include <doctest/doctest.h>
#include <limits>

namespace dflash::tensor {
namespace {

at::Tensor doubles(const at::Tensor& x) {
    return x.to(at::kFloat).to(at::kDouble);
}

TEST_SUITE("tensor.float8") {
    TEST_CASE("rows in 8 bits are off by half a step, with the largest magnitude at 448") {
        at::manual_seed(5);
        const at::Tensor x = at::randn({9, 640}) * at::logspace(-3, 3, 9).unsqueeze(1);
        const Float8Rows y = empty_float8_rows(9, 640, at::kCPU);
        quantize_rows_out(y, x);
        CHECK(doubles(y.values_RC).abs().amax(1).eq(448).all().item<bool>());
        const at::Tensor scale = y.scale_R.to(at::kDouble).unsqueeze(1);
        const at::Tensor exact = x.to(at::kDouble);
        const at::Tensor error = (dequantized(y, at::kDouble) - exact).abs();
        // A sixteenth of a number, or half of the smallest one, 2^-9.
        const at::Tensor bound =
            at::maximum(exact.abs() / 16, scale * 0x1p-10) + exact.abs() * 1e-6;
        CHECK(error.le(bound).all().item<bool>());
        CHECK(error.gt(0).any().item<bool>());
    }

    TEST_CASE("rows of zeros are zeros, and what is not finite shows") {
        at::Tensor x = at::ones({4, 16});
        x[0].zero_();
        x[1].fill_(0x1p-110);
        x[2][5] = std::numeric_limits<float>::infinity();
        x[3][7] = std::numeric_limits<float>::quiet_NaN();
        const Float8Rows y = empty_float8_rows(4, 16, at::kCPU);
        quantize_rows_out(y, x);
        const at::Tensor back = dequantized(y, at::kFloat);
        CHECK(back.narrow(0, 0, 2).eq(0).all().item<bool>());
        CHECK_FALSE(std::isfinite(back[2].sum().item<float>()));
        CHECK_FALSE(std::isfinite(back[3].sum().item<float>()));
    }

    TEST_CASE("products in 8 bits are those of what the operands stand for, in pieces or not") {
        at::manual_seed(6);
        // 5 million elements: more than one piece.
        const at::Tensor weight = at::randn({10000, 512});
        const at::Tensor x = at::randn({3, 512});
        const Float8Rows w8 = empty_float8_rows(10000, 512, at::kCPU);
        const Float8Rows x8 = empty_float8_rows(3, 512, at::kCPU);
        quantize_rows_out(w8, weight);
        quantize_rows_out(x8, x);
        const at::Tensor exact =
            at::mm(dequantized(x8, at::kDouble), dequantized(w8, at::kDouble).t());
        const at::Tensor padded = at::zeros({3, 10008});
        const at::Tensor y = padded.narrow(1, 0, 10000);
        TorchRowOps ops;
        ops.float8_linear(y, x, w8);
        CHECK((y.to(at::kDouble) - exact).abs().max().item<double>() < 2e-4);
        CHECK(padded.narrow(1, 10000, 8).eq(0).all().item<bool>());
    }

    TEST_CASE(
        "the gradient of logits in 8 bits has the label exactly and the others to half a step") {
        for (const double spread : {0.01, 3.0, 12.0}) {
            CAPTURE(spread);
            at::manual_seed(7);
            constexpr std::int64_t kV = 5000;
            const at::Tensor logits = at::randn({6, kV}) * spread;
            const at::Tensor label = at::randint(kV, {6}, at::kLong);
            at::Tensor exact = at::softmax(logits.to(at::kDouble), 1);
            exact.scatter_(1, label.unsqueeze(1), 0);
            const at::Tensor others = exact.sum(1, true);
            exact.scatter_(1, label.unsqueeze(1), -others);
            TorchRowOps ops;
            const at::Tensor loss = at::empty({6});
            const at::Tensor argmax = at::empty({6}, at::kLong);
            const LogitsGradient got = ops.cross_entropy(
                loss, argmax, logits.clone(), label, at::kFloat8_e5m2, /*with_gradient=*/true);
            CHECK_FALSE(got.divisor_C1.defined());
            CHECK(doubles(got.gradient_CV)
                      .gather(1, label.unsqueeze(1))
                      .eq(-32768)
                      .all()
                      .item<bool>());
            const at::Tensor scale = got.scale_C.to(at::kDouble).unsqueeze(1);
            const at::Tensor error = (doubles(got.gradient_CV) * scale - exact).abs();
            const at::Tensor bound =
                at::maximum(exact.abs() / 8, scale * 0x1p-17) + exact.abs() * 1e-4;
            CHECK(error.le(bound).all().item<bool>());
            CHECK(argmax.equal(logits.argmax(1)));
        }
    }

    TEST_CASE("a label without others has no gradient in 8 bits") {
        const at::Tensor logits = at::zeros({1, 64});
        logits[0][7] = 200;
        const at::Tensor loss = at::empty({1});
        const at::Tensor argmax = at::empty({1}, at::kLong);
        TorchRowOps ops;
        const LogitsGradient got = ops.cross_entropy(
            loss, argmax, logits, at::full({1}, 7, at::kLong), at::kFloat8_e5m2, true);
        CHECK(doubles(got.gradient_CV).eq(0).all().item<bool>());
        CHECK(got.scale_C.item<float>() == 0);
    }
}

}  // namespace
}  // namespace dflash::tensor
