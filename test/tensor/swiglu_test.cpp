// SPDX-License-Identifier: Apache-2.0
#include "largest_error.hpp"

#include <dflash/tensor/swiglu.hpp>

#include <doctest/doctest.h>

namespace dflash::tensor {
namespace {

TEST_SUITE("tensor.swiglu") {
    TEST_CASE("forward and backward equal the formulas, out of one joined matrix") {
        at::manual_seed(6);
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
            CAPTURE(std::string(at::toString(dtype)));
            const double tolerance = dtype == at::kFloat      ? 1e-6
                                     : dtype == at::kBFloat16 ? 0x1.0p-8
                                                              : 1e-14;
            const at::Tensor joined = (at::randn({9, 14}, at::kDouble) * 3).to(dtype);
            const at::Tensor gate = joined.narrow(1, 0, 7);
            const at::Tensor up = joined.narrow(1, 7, 7);
            const at::Tensor dy = at::randn({9, 7}, at::kDouble).to(dtype);
            const at::Tensor g = gate.to(at::kDouble);
            const at::Tensor u = up.to(at::kDouble);
            const at::Tensor sigma = 1 / (1 + (-g).exp());
            const at::Tensor y64 = g * sigma * u;

            const at::Tensor y = at::empty({9, 7}, dtype);
            swiglu_out(y, gate, up);
            CHECK(largest_error(y, y64) < tolerance);

            const at::Tensor gradient = at::empty({9, 14}, dtype);
            const at::Tensor again = at::empty({9, 7}, dtype);
            swiglu_backward_out(
                gradient.narrow(1, 0, 7), gradient.narrow(1, 7, 7), &again, dy, gate, up);
            const at::Tensor d = dy.to(at::kDouble);
            CHECK(largest_error(gradient.narrow(1, 0, 7), d * u * sigma * (1 + g * (1 - sigma))) <
                  tolerance);
            CHECK(largest_error(gradient.narrow(1, 7, 7), d * g * sigma) < tolerance);
            CHECK(largest_error(again, y64) < tolerance);

            // The same bits where gradients take the place of what they belong to.
            const at::Tensor place = dy.clone();
            swiglu_backward_out(gate, up, &place, place, gate, up);
            CHECK(joined.equal(gradient));
            CHECK(place.equal(again));
        }
    }

    TEST_CASE("large gates neither overflow nor turn into NaN") {
        const at::Tensor gate = at::tensor({-1e4F, -100.0F, 0.0F, 100.0F, 1e4F});
        const at::Tensor up = at::ones({5});
        const at::Tensor dgate = at::empty({5});
        const at::Tensor dup = at::empty({5});
        swiglu_backward_out(dgate, dup, nullptr, at::ones({5}), gate, up);
        CHECK(dgate.isfinite().all().item<bool>());
        CHECK(dup.equal(at::tensor({-0.0F, -0.0F, 0.0F, 100.0F, 1e4F})));
    }
}

}  // namespace
}  // namespace dflash::tensor
