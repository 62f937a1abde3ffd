// SPDX-License-Identifier: Apache-2.0
#include "largest_error.hpp"

#include <dflash/tensor/rms_norm.hpp>

#include <doctest/doctest.h>

namespace dflash::tensor {
namespace {

at::Tensor formula(const at::Tensor& x, const at::Tensor& weight, double eps) {
    const at::Tensor x64 = x.to(at::kDouble);
    return x64 / (x64.square().mean(-1, true) + eps).sqrt() * weight.to(at::kDouble);
}

TEST_SUITE("tensor.rms_norm") {
    TEST_CASE("equals the formula in fp64, for views of any strides and far scales") {
        at::manual_seed(2);
        for (const double scale : {1e-4, 1.0, 1e4}) {
            for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
                CAPTURE(scale);
                CAPTURE(std::string(at::toString(dtype)));
                const double tolerance = dtype == at::kFloat      ? 1e-6
                                         : dtype == at::kBFloat16 ? 0x1.0p-8
                                                                  : 1e-14;
                const at::Tensor wide = (at::randn({6, 5, 12}, at::kDouble) * scale).to(dtype);
                const at::Tensor x = wide.narrow(2, 3, 8).transpose(0, 1);
                const at::Tensor weight = (at::rand({8}, at::kDouble) + 0.5).to(dtype);
                const at::Tensor y = rms_norm(x, weight, 1e-6);
                CHECK((y.scalar_type() == dtype));
                CHECK(largest_error(y, formula(x, weight, 1e-6)) < tolerance);

                const at::ScalarType sum = dtype == at::kDouble ? at::kDouble : at::kFloat;
                const at::Tensor inverse_rms = at::empty({5, 6, 1}, sum);
                const at::Tensor out = at::empty({5, 6, 8}, dtype);
                rms_norm_out(out, x, weight, 1e-6, &inverse_rms);
                CHECK(out.equal(y));
                const at::Tensor again = at::empty({5, 6, 8}, dtype);
                rms_norm_again(again, x, weight, inverse_rms);
                CHECK(again.equal(y));
            }
        }
    }

    TEST_CASE("a row of zeros stays zero, with a finite backward") {
        const at::Tensor x = at::zeros({2, 4});
        const at::Tensor weight = at::ones({4});
        const at::Tensor inverse_rms = at::empty({2, 1});
        const at::Tensor y = at::empty({2, 4});
        rms_norm_out(y, x, weight, 1e-6, &inverse_rms);
        CHECK(y.eq(0).all().item<bool>());
        const at::Tensor dx = at::empty({2, 4});
        const at::Tensor dweight = at::zeros({4});
        rms_norm_backward(dx, false, dweight, at::ones({2, 4}), x, weight, inverse_rms);
        CHECK(dx.isfinite().all().item<bool>());
        CHECK(dweight.eq(0).all().item<bool>());
    }

    TEST_CASE("gradients of bf16 activations are summed in fp32") {
        at::manual_seed(3);
        const at::Tensor x = at::randn({400, 16}).to(at::kBFloat16);
        const at::Tensor weight = (at::rand({16}) + 0.5).to(at::kBFloat16);
        const at::Tensor dy = at::randn({400, 16});
        const at::Tensor inverse_rms = at::empty({400, 1});
        rms_norm_out(at::empty({400, 16}, at::kBFloat16), x, weight, 1e-6, &inverse_rms);
        const at::Tensor dx = at::zeros({400, 16});
        const at::Tensor dweight = at::zeros({16});
        rms_norm_backward(dx, true, dweight, dy.clone(), x, weight, inverse_rms);
        const at::Tensor x64 = x.to(at::kDouble);
        const at::Tensor dx64 = at::zeros({400, 16}, at::kDouble);
        const at::Tensor dweight64 = at::zeros({16}, at::kDouble);
        const at::Tensor r64 = (x64.square().mean(-1, true) + 1e-6).rsqrt();
        rms_norm_backward(
            dx64, true, dweight64, dy.to(at::kDouble), x64, weight.to(at::kDouble), r64);
        CHECK(largest_error(dx, dx64) < 2e-6);
        CHECK(largest_error(dweight, dweight64) < 2e-6);
    }

    TEST_CASE("inputs stay as they are, whatever the dtypes") {
        for (const at::ScalarType x_dtype : {at::kFloat, at::kBFloat16}) {
            for (const at::ScalarType y_dtype : {at::kFloat, at::kBFloat16}) {
                const at::Tensor x = at::randn({5, 16}).to(x_dtype);
                const at::Tensor before = x.clone();
                const at::Tensor weight = at::full({16}, 3.0, y_dtype);
                const at::Tensor inverse_rms = at::empty({5, 1});
                rms_norm_out(at::empty({5, 16}, y_dtype), x, weight, 1e-6, &inverse_rms);
                CHECK(x.equal(before));
                const at::Tensor dx = at::zeros({5, 16}, y_dtype);
                rms_norm_backward(
                    dx, false, at::zeros({16}), at::randn({5, 16}), x, weight, inverse_rms);
                CHECK(x.equal(before));
                CHECK(weight.eq(3).all().item<bool>());
            }
        }
    }
}

}  // namespace
}  // namespace dflash::tensor
