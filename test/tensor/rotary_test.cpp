// SPDX-License-Identifier: Apache-2.0
#include "largest_error.hpp"

#include <dflash/core/error.hpp>
#include <dflash/tensor/rotary.hpp>

#include <cmath>
#include <complex>
#include <doctest/doctest.h>

namespace dflash::tensor {
namespace {

/// Pair (i, i + F) of every head as a complex number, turned by position x frequency.
at::Tensor turned(const at::Tensor& x_Rnd,
                  const std::vector<std::int64_t>& positions,
                  const std::vector<float>& frequencies,
                  double factor) {
    at::Tensor y = x_Rnd.to(at::kDouble).clone();
    const std::int64_t F = static_cast<std::int64_t>(frequencies.size());
    for (std::int64_t r = 0; r < y.size(0); ++r) {
        for (std::int64_t h = 0; h < y.size(1); ++h) {
            for (std::int64_t i = 0; i < F; ++i) {
                const std::complex<double> value{x_Rnd[r][h][i].item<double>(),
                                                 x_Rnd[r][h][i + F].item<double>()};
                const float angle = static_cast<float>(positions[static_cast<std::size_t>(r)]) *
                                    frequencies[static_cast<std::size_t>(i)];
                const auto result = value * std::polar(factor, static_cast<double>(angle));
                y[r][h][i] = result.real();
                y[r][h][i + F] = result.imag();
            }
        }
    }
    return y;
}

TEST_SUITE("tensor.rotary") {
    TEST_CASE("frequencies fall from 1 by the power rule") {
        const std::vector<float> frequencies = rotary_frequencies(1e6, 128);
        REQUIRE(frequencies.size() == 64);
        CHECK(frequencies[0] == 1.0F);
        CHECK(frequencies[63] == doctest::Approx(std::pow(1e6, -126.0 / 128.0)).epsilon(1e-7));
    }

    TEST_CASE("turns pairs of the two halves by position x frequency") {
        at::manual_seed(4);
        const std::vector<std::int64_t> positions{0, 1, 2, 1000, 40959};
        for (const std::int64_t d : {2, 6, 16}) {
            for (const std::int64_t F : {d / 2, std::max<std::int64_t>(1, d / 4)}) {
                CAPTURE(d);
                CAPTURE(F);
                const std::vector<float> frequencies = rotary_frequencies(1e4, 2 * F);
                const RotaryTable table = rotary_table(at::tensor(positions), frequencies, 1.25);
                const at::Tensor x = at::randn({5, 3, d + 1}, at::kDouble).narrow(2, 1, d);
                const at::Tensor y = at::empty({5, 3, d}, at::kDouble);
                rotary_out(y, x, table);
                CHECK(largest_error(y, turned(x, positions, frequencies, 1.25)) < 2e-7);
                const at::Tensor y32 = at::empty({5, 3, d});
                rotary_out(y32, x.to(at::kFloat), table);
                CHECK(largest_error(y32, y) < 1e-6);
                const at::Tensor y16 = at::empty({5, 3, d}, at::kBFloat16);
                rotary_out(y16, x.to(at::kBFloat16), table);
                CHECK(largest_error(y16, y) < 0x1.0p-7);
            }
        }
    }

    TEST_CASE("turning back undoes turning, and keeps scalar products") {
        at::manual_seed(5);
        const RotaryTable table = rotary_table(at::arange(7), rotary_frequencies(1e6, 8));
        const at::Tensor x = at::randn({7, 2, 8}, at::kDouble);
        const at::Tensor y = at::empty_like(x);
        const at::Tensor back = at::empty_like(x);
        rotary_out(y, x, table);
        rotary_inverse_out(back, y, table);
        CHECK(largest_error(back, x) < 1e-6);  // cos^2 + sin^2 of an fp32 table
        // The backward is the transpose: <dy, turn(x)> = <turn back(dy), x>.
        const at::Tensor dy = at::randn({7, 2, 8}, at::kDouble);
        rotary_inverse_out(back, dy, table);
        CHECK(dy.mul(y).sum().item<double>() ==
              doctest::Approx(back.mul(x).sum().item<double>()).epsilon(1e-13));
        CHECK(table.rows(2, 3).cos_RF.equal(table.cos_RF.narrow(0, 2, 3)));
    }

    TEST_CASE("a table wider than the heads is an internal error") {
        const RotaryTable table = rotary_table(at::arange(2), rotary_frequencies(1e6, 8));
        CHECK_THROWS_AS(rotary_out(at::empty({2, 1, 4}), at::zeros({2, 1, 4}), table), Error);
    }
}

}  // namespace
}  // namespace dflash::tensor
