// SPDX-License-Identifier: Apache-2.0
// Hand-written backward passes against Torch's autograd, in fp64. The only tests here that record
// graphs.
#include "largest_error.hpp"

#include <dflash/tensor/rms_norm.hpp>
#include <dflash/tensor/rotary.hpp>
#include <dflash/tensor/swiglu.hpp>

#include <doctest/doctest.h>

namespace dflash::tensor {
namespace {

at::Tensor leaf(at::IntArrayRef shape) {
    return at::randn(shape, at::kDouble).requires_grad_();
}

TEST_SUITE("tensor.autograd") {
    TEST_CASE("rms_norm's gradients are autograd's") {
        at::manual_seed(7);
        const at::Tensor x = leaf({3, 4, 10});
        const at::Tensor weight = leaf({10});
        const at::Tensor dy = at::randn({3, 4, 10}, at::kDouble);
        const at::Tensor y = x * (x.square().mean(-1, true) + 1e-3).rsqrt() * weight;
        y.backward(dy);

        const at::Tensor xd = x.detach();
        const at::Tensor wd = weight.detach();
        const at::Tensor r = (xd.square().mean(-1, true) + 1e-3).rsqrt();
        for (const bool add : {false, true}) {
            CAPTURE(add);
            const at::Tensor start = at::randn({3, 4, 10}, at::kDouble);
            const at::Tensor dx = start.clone();
            const at::Tensor dweight = at::ones({10}, at::kDouble);
            rms_norm_backward(dx, add, dweight, dy.clone(), xd, wd, r);
            CHECK(largest_error(add ? dx - start : dx, x.grad()) < 1e-13);
            CHECK(largest_error(dweight - 1, weight.grad()) < 1e-13);
        }
        // In place: dx over dy.
        const at::Tensor in_place = dy.clone();
        rms_norm_backward(in_place, false, at::zeros({10}, at::kDouble), in_place, xd, wd, r);
        CHECK(largest_error(in_place, x.grad()) < 1e-13);
    }

    TEST_CASE("swiglu's gradients are autograd's") {
        at::manual_seed(8);
        const at::Tensor gate = leaf({5, 6});
        const at::Tensor up = leaf({5, 6});
        const at::Tensor dy = at::randn({5, 6}, at::kDouble);
        (at::silu(gate) * up).backward(dy);
        const at::Tensor dgate = at::empty({5, 6}, at::kDouble);
        const at::Tensor dup = at::empty({5, 6}, at::kDouble);
        swiglu_backward_out(dgate, dup, nullptr, dy, gate.detach(), up.detach());
        CHECK(largest_error(dgate, gate.grad()) < 1e-13);
        CHECK(largest_error(dup, up.grad()) < 1e-13);
    }

    TEST_CASE("the rotation's gradient is autograd's") {
        at::manual_seed(9);
        const RotaryTable table = rotary_table(at::arange(4), rotary_frequencies(100, 6), 0.5);
        const at::Tensor x = leaf({4, 2, 6});
        const at::Tensor dy = at::randn({4, 2, 6}, at::kDouble);
        const at::Tensor cos = table.cos_RF.to(at::kDouble).unsqueeze(1);
        const at::Tensor sin = table.sin_RF.to(at::kDouble).unsqueeze(1);
        const at::Tensor a = x.narrow(2, 0, 3);
        const at::Tensor b = x.narrow(2, 3, 3);
        at::cat({a * cos - b * sin, b * cos + a * sin}, 2).backward(dy);
        const at::Tensor dx = at::empty({4, 2, 6}, at::kDouble);
        rotary_inverse_out(dx, dy, table);
        CHECK(largest_error(dx, x.grad()) < 1e-13);
    }
}

}  // namespace
}  // namespace dflash::tensor
