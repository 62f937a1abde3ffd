// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/kernels/head_norm.hpp>

#include <doctest/doctest.h>

namespace dflash::kernels {
namespace {

TEST_SUITE("kernels.head_norm") {
    TEST_CASE("head sizes and rotary columns that the kernels do not have are refused") {
        for (const HeadNormShape& shape : {HeadNormShape{0, 0},
                                           HeadNormShape{96, 0},
                                           HeadNormShape{512, 0},
                                           HeadNormShape{128, 144},
                                           HeadNormShape{128, 72},
                                           HeadNormShape{128, -16}}) {
            CAPTURE(shape.head_dim);
            CAPTURE(shape.rotary_columns);
            CHECK_THROWS_AS(head_norm_forward_kernel(shape, true), Error);
            CHECK_THROWS_AS(head_norm_backward_kernel(shape, Element::BFloat16), Error);
        }
    }

    TEST_CASE("turning all columns is the same kernel, said or not") {
        CHECK(head_norm_forward_kernel({128, 0}, true) ==
              head_norm_forward_kernel({128, 128}, true));
    }
}

}  // namespace
}  // namespace dflash::kernels
