// SPDX-License-Identifier: Apache-2.0
#include "largest_error.hpp"

#include <dflash/core/error.hpp>
#include <dflash/tensor/linear.hpp>

#include <doctest/doctest.h>

namespace dflash::tensor {
namespace {

at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype) {
    return at::randn(shape, at::kDouble).to(dtype);
}

TEST_SUITE("tensor.linear") {
    TEST_CASE("forward and backward products equal fp64 ones, also into views") {
        at::manual_seed(1);
        for (const auto& [R, I, O] : {std::tuple{1, 1, 1},
                                      std::tuple{7, 5, 3},
                                      std::tuple{33, 64, 17},
                                      std::tuple{0, 4, 6}}) {
            for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
                CAPTURE(R);
                CAPTURE(I);
                CAPTURE(O);
                const at::Tensor x = random({R, I}, dtype);
                const at::Tensor w = random({O, I}, dtype);
                const at::Tensor dy = random({R, O}, dtype);
                const double tolerance = dtype == at::kFloat ? 1e-5 : 1e-14;
                const auto same = [&](const at::Tensor& got, const at::Tensor& expected) {
                    CHECK((got.to(at::kDouble) - expected).abs().sum().item<double>() <=
                          tolerance * (1 + expected.abs().sum().item<double>()));
                };
                const at::Tensor y64 = x.to(at::kDouble).mm(w.to(at::kDouble).t());
                same(tensor::linear(x, w), y64);
                const at::Tensor y = random({R, O + 2}, dtype);
                linear_out(y.narrow(1, 1, O), x, w);
                same(y.narrow(1, 1, O), y64);
                linear_add(y.narrow(1, 1, O), x, w);
                same(y.narrow(1, 1, O), 2 * y64);

                const at::Tensor dx64 = dy.to(at::kDouble).mm(w.to(at::kDouble));
                const at::Tensor dx = random({R, I}, dtype);
                linear_backward_input_out(dx, dy, w);
                same(dx, dx64);
                linear_backward_input_add(dx, dy, w);
                same(dx, 2 * dx64);

                const at::Tensor dw = random({O, 2 * I}, dtype);
                const at::Tensor before = dw.to(at::kDouble).clone();
                linear_backward_weight_add(dw.narrow(1, I, I), dy, x);
                same(dw.narrow(1, I, I),
                     before.narrow(1, I, I) + dy.to(at::kDouble).t().mm(x.to(at::kDouble)));
                CHECK(dw.narrow(1, 0, I).to(at::kDouble).equal(before.narrow(1, 0, I)));
            }
        }
    }

    TEST_CASE("weight gradients of bf16 operands keep fp32 bits") {
        // A sum of 1 + 2^-9 needs more bits than bf16 has (8), and so do 300 further ones.
        const at::Tensor dy = at::ones({1, 1}, at::kBFloat16);
        const at::Tensor x = at::full({1, 1}, 0x1.0p-9, at::kBFloat16);
        const at::Tensor dw = at::ones({1, 1}, at::kFloat);
        for (int i = 0; i < 300; ++i) {
            linear_backward_weight_add(dw, dy, x);
        }
        CHECK(dw.item<float>() == 1.0F + 300 * 0x1.0p-9F);

        const at::Tensor many_dy = random({500, 6}, at::kBFloat16);
        const at::Tensor many_x = random({500, 5}, at::kBFloat16);
        const at::Tensor sum = at::zeros({6, 5}, at::kFloat);
        linear_backward_weight_add(sum, many_dy, many_x);
        CHECK(largest_error(sum, many_dy.to(at::kDouble).t().mm(many_x.to(at::kDouble))) < 2e-6);
        const at::Tensor wide = at::zeros({500, 6}, at::kFloat);
        linear_out(wide, many_x, random({6, 5}, at::kBFloat16));
        CHECK(wide.to(at::kBFloat16).to(at::kFloat).ne(wide).any().item<bool>());
    }

    TEST_CASE("shapes and dtypes that do not fit are internal errors") {
        const at::Tensor x = at::zeros({2, 3});
        CHECK_THROWS_AS(linear_out(at::zeros({2, 4}), x, at::zeros({5, 3})), Error);
        CHECK_THROWS_AS(
            linear_backward_weight_add(at::zeros({5, 3}, at::kBFloat16), at::zeros({2, 5}), x),
            Error);
    }
}

}  // namespace
}  // namespace dflash::tensor
