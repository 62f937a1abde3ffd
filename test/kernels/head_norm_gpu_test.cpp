// SPDX-License-Identifier: Apache-2.0
#include "rows/device_rows.hpp"

#include <dflash/core/error.hpp>
#include <dflash/kernels/head_norm.hpp>
#include <dflash/kernels/rms_norm.hpp>

#include <cmath>
#include <doctest/doctest.h>
#include <vector>

namespace dflash::kernels {
namespace {

using test::check_against_naive;
using test::check_fp32;
using test::DeviceRows;
using test::random_rows;
using test::row_kernels;

using Values = std::vector<double>;
using Round = double (*)(double);

constexpr Element kBf16 = Element::BFloat16;
constexpr Element kFp32 = Element::Float32;
constexpr double kEps = 1e-6;

constexpr HeadNormShape kShapes[] = {{32, 0}, {64, 0}, {128, 0}, {256, 0}, {256, 64}, {64, 32}};

double exactly(double x) {
    return x;
}

std::int64_t pairs_of(const HeadNormShape& shape) {
    return (shape.rotary_columns == 0 ? shape.head_dim : shape.rotary_columns) / 2;
}

/// Angles of a row's pairs as cos and sin in fp32.
struct Table {
    Values cos;
    Values sin;

    Table(std::int64_t rows, std::int64_t pairs) {
        for (std::int64_t row = 0; row < rows; ++row) {
            for (std::int64_t i = 0; i < pairs; ++i) {
                const double angle =
                    static_cast<double>(row * 37 + 5) * std::pow(1e4, -static_cast<double>(i) / 16);
                cos.push_back(static_cast<float>(std::cos(angle)));
                sin.push_back(static_cast<float>(std::sin(angle)));
            }
        }
    }
};

/// One head, in fp64; `round` is applied to the result of every elementwise operation.
struct HeadReference {
    std::size_t d;
    std::size_t F;
    const double* cos;
    const double* sin;
    Round round;

    /// y[i], y[i + F] = x turned by sign times the angle.
    void turn(double* y, const double* x, int sign) const {
        std::copy_n(x, d, y);
        for (std::size_t i = 0; i < F; ++i) {
            y[i] = round(round(x[i] * cos[i]) - sign * round(x[i + F] * sin[i]));
            y[i + F] = round(round(x[i + F] * cos[i]) + sign * round(x[i] * sin[i]));
        }
    }

    double inverse_rms(const double* x) const {
        double squares = 0;
        for (std::size_t i = 0; i < d; ++i) {
            squares += x[i] * x[i];
        }
        return 1 / std::sqrt(squares / static_cast<double>(d) + kEps);
    }

    void backward(double* dx,
                  double* dweight,
                  const double* dy,
                  const double* x,
                  const double* weight) const {
        Values dn(d);
        turn(dn.data(), dy, -1);
        const double r = inverse_rms(x);
        double product = 0;
        for (std::size_t i = 0; i < d; ++i) {
            const double scaled = round(dn[i] * round(x[i] * r));
            dweight[i] += scaled;
            product += scaled * weight[i];
        }
        for (std::size_t i = 0; i < d; ++i) {
            const double normed = round(x[i] * r);
            const double mean = product / static_cast<double>(d);
            dx[i] = round(round(round(dn[i] * weight[i]) - round(normed * mean)) * r);
        }
    }
};

/// Heads in the middle of a joined projection, with their inputs on the GPU.
struct Heads {
    std::int64_t rows;
    std::int64_t heads;
    HeadNormShape shape;
    Element dy_element;
    std::int64_t columns = heads * shape.head_dim;
    std::int64_t pairs = pairs_of(shape);
    std::int64_t gap = 2 * shape.head_dim;  // other heads of the projection
    Values x = random_rows(1, rows* columns, kBf16, 3);
    Values weight = random_rows(2, shape.head_dim, kBf16, 0.3, 1);
    Values dy = random_rows(3, rows* columns, dy_element, 0.1);
    Table table{rows, pairs};
    DeviceRows x_RND{rows, columns, kBf16, gap, x};
    DeviceRows dy_RND{rows, columns, dy_element, 0, dy};
    DeviceRows weight_1D{1, shape.head_dim, kBf16, 0, weight};
    DeviceRows cos_RF{rows, pairs, kFp32, 4, table.cos};
    DeviceRows sin_RF{rows, pairs, kFp32, 4, table.sin};
    DeviceRows inverse_rms_1N{1, rows* heads, kFp32};
    DeviceRows y_RND{rows, columns, kBf16, 0};
    DeviceRows dx_RND{rows, columns, kBf16, gap};
    DeviceRows dweight_1D{1, shape.head_dim, kFp32, 0, random_rows(4, shape.head_dim, kFp32)};

    Heads(std::int64_t num_rows,
          std::int64_t num_heads,
          const HeadNormShape& head_shape,
          Element dy_type = kBf16)
        : rows(num_rows), heads(num_heads), shape(head_shape), dy_element(dy_type) {}

    RotaryRows rotary() const {
        return {cos_RF.floats(), sin_RF.floats(), cos_RF.tensor().row_stride};
    }

    void forward(bool norm = true) const {
        head_norm_forward(row_kernels().get(head_norm_forward_kernel(shape, norm)),
                          {.x_RND = x_RND.tensor(),
                           .y_RND = y_RND.tensor(),
                           .weight_D = norm ? weight_1D.tensor().data : nullptr,
                           .rotary = rotary(),
                           .inverse_rms_RN = norm ? inverse_rms_1N.floats() : nullptr},
                          rows,
                          heads,
                          kEps,
                          row_kernels().stream());
    }

    void backward(std::int64_t num_partials = 5) const {
        const DeviceRows partials(num_partials, shape.head_dim, kFp32);
        head_norm_backward(row_kernels().get(head_norm_backward_kernel(shape, dy_element)),
                           row_kernels().get(norm_weight_gradient_kernel()),
                           {.dy_RND = dy_RND.tensor(),
                            .x_RND = x_RND.tensor(),
                            .weight_D = weight_1D.tensor().data,
                            .inverse_rms_RN = inverse_rms_1N.floats(),
                            .rotary = rotary(),
                            .dx_RND = dx_RND.tensor(),
                            .dweight_D = dweight_1D.floats()},
                           rows,
                           heads,
                           {partials.floats(), num_partials},
                           row_kernels().stream());
        row_kernels().stream().synchronize();
    }

    std::size_t num_units() const { return static_cast<std::size_t>(rows * heads); }

    HeadReference reference(std::size_t unit, Round round) const {
        const std::size_t row = unit / static_cast<std::size_t>(heads);
        const auto num_pairs = static_cast<std::size_t>(pairs);
        return {static_cast<std::size_t>(shape.head_dim),
                num_pairs,
                table.cos.data() + row * num_pairs,
                table.sin.data() + row * num_pairs,
                round};
    }

    /// n is rounded to bf16 in both: that is what the kernel is to compute.
    Values forward_reference(bool norm, Round round, Values* inverse_rms = nullptr) const {
        Values y(x.size());
        for (std::size_t unit = 0; unit < num_units(); ++unit) {
            const HeadReference head = reference(unit, round);
            const double* const x_D = x.data() + unit * head.d;
            Values n(x_D, x_D + head.d);
            if (norm) {
                // The rounding of n follows the fp32 value of r, so that ties fall alike.
                const auto r = static_cast<float>(head.inverse_rms(x_D));
                for (std::size_t i = 0; i < head.d; ++i) {
                    n[i] = test::round_to_bf16(round(n[i] * r) * weight[i]);
                }
                if (inverse_rms != nullptr) {
                    inverse_rms->push_back(r);
                }
            }
            head.turn(y.data() + unit * head.d, n.data(), 1);
        }
        return y;
    }
};

struct Gradients {
    Values dx;
    Values dweight;

    Gradients(const Heads& heads, const Values& dweight_before, Round round)
        : dx(heads.x.size()), dweight(dweight_before) {
        for (std::size_t unit = 0; unit < heads.num_units(); ++unit) {
            const HeadReference head = heads.reference(unit, round);
            head.backward(dx.data() + unit * head.d,
                          dweight.data(),
                          heads.dy.data() + unit * head.d,
                          heads.x.data() + unit * head.d,
                          heads.weight.data());
        }
    }
};

void prepare_kernels() {
    std::vector<KernelSpec> specs;
    for (const HeadNormShape& shape : kShapes) {
        specs.push_back(head_norm_forward_kernel(shape, true));
        specs.push_back(head_norm_forward_kernel(shape, false));
        specs.push_back(head_norm_backward_kernel(shape, kBf16));
        specs.push_back(head_norm_backward_kernel(shape, kFp32));
    }
    row_kernels().prepare(specs);
}

TEST_SUITE("kernels.head_norm") {
    TEST_CASE("forward: norms and turns heads of every size, some columns or all") {
        prepare_kernels();
        for (const HeadNormShape& shape : kShapes) {
            for (const std::int64_t heads : {1, 3, 8, 40}) {
                for (const std::int64_t rows : {1, 7, 66}) {
                    CAPTURE(shape.head_dim);
                    CAPTURE(shape.rotary_columns);
                    CAPTURE(heads);
                    CAPTURE(rows);
                    const Heads h(rows, heads, shape);
                    h.forward();
                    Values inverse_rms;
                    const Values exact = h.forward_reference(true, exactly, &inverse_rms);
                    const Values naive = h.forward_reference(true, test::round_to_bf16);
                    check_against_naive("y", h.y_RND.fetch(), exact, naive);
                    check_fp32("inverse rms", h.inverse_rms_1N.fetch(), inverse_rms);
                }
            }
        }
    }

    TEST_CASE("forward: only turns without a norm") {
        for (const HeadNormShape& shape : kShapes) {
            CAPTURE(shape.head_dim);
            CAPTURE(shape.rotary_columns);
            const Heads h(19, 5, shape);
            h.forward(/*norm=*/false);
            check_against_naive("y",
                                h.y_RND.fetch(),
                                h.forward_reference(false, exactly),
                                h.forward_reference(false, test::round_to_bf16));
        }
    }

    TEST_CASE("forward: writes into its own input") {
        const Heads h(23, 6, {128, 0});
        h.forward();
        const Values y = h.y_RND.fetch();
        head_norm_forward(row_kernels().get(head_norm_forward_kernel(h.shape, true)),
                          {.x_RND = h.x_RND.tensor(),
                           .y_RND = h.x_RND.tensor(),
                           .weight_D = h.weight_1D.tensor().data,
                           .rotary = h.rotary()},
                          h.rows,
                          h.heads,
                          kEps,
                          row_kernels().stream());
        CHECK(h.x_RND.fetch() == y);
    }

    TEST_CASE("backward: is within rounding of fp64 for all sizes and both types of dy") {
        for (const HeadNormShape& shape : kShapes) {
            for (const Element dy : {kBf16, kFp32}) {
                for (const std::int64_t heads : {1, 3, 8, 40}) {
                    for (const std::int64_t rows : {1, 7, 66}) {
                        CAPTURE(shape.head_dim);
                        CAPTURE(shape.rotary_columns);
                        CAPTURE(heads);
                        CAPTURE(rows);
                        CAPTURE(dy == kFp32);
                        const Heads h(rows, heads, shape, dy);
                        h.forward();
                        const Values before = h.dweight_1D.fetch();
                        h.backward();
                        const Gradients exact(h, before, exactly);
                        const Gradients naive(h, before, test::round_to_bf16);
                        check_against_naive("dx", h.dx_RND.fetch(), exact.dx, naive.dx);
                        check_fp32("dweight", h.dweight_1D.fetch(), exact.dweight);
                    }
                }
            }
        }
    }

    TEST_CASE("backward: gives the same bits every time, and dx whatever the partials") {
        Heads h(500, 32, {128, 0});
        h.forward();
        const Values before = h.dweight_1D.fetch();
        h.backward(264);
        const Values dx = h.dx_RND.fetch();
        const Values dweight = h.dweight_1D.fetch();
        for (int run = 0; run < 20; ++run) {
            h.dweight_1D.set(before);
            h.backward(264);
            REQUIRE(h.dx_RND.fetch() == dx);
            REQUIRE(h.dweight_1D.fetch() == dweight);
        }
        for (const std::int64_t partials : {1, 9, 5000}) {
            h.dweight_1D.set(before);
            h.backward(partials);
            CHECK(h.dx_RND.fetch() == dx);
            check_fp32("dweight", h.dweight_1D.fetch(), dweight);
        }
    }

    TEST_CASE("no rows: nothing happens, also without memory") {
        const DeviceRows dweight_1D(1, 32, kFp32, 0, Values(32, 2));
        const RowTensor none{nullptr, 64, kBf16};
        head_norm_forward(row_kernels().get(head_norm_forward_kernel({32, 0}, true)),
                          {.x_RND = none, .y_RND = none},
                          0,
                          2,
                          kEps,
                          row_kernels().stream());
        head_norm_backward(
            row_kernels().get(head_norm_backward_kernel({32, 0}, kBf16)),
            row_kernels().get(norm_weight_gradient_kernel()),
            {.dy_RND = none, .x_RND = none, .dx_RND = none, .dweight_D = dweight_1D.floats()},
            0,
            2,
            {},
            row_kernels().stream());
        CHECK(dweight_1D.fetch() == Values(32, 2));
    }

    TEST_CASE("tensors that do not fit the kernel are refused") {
        const Heads h(2, 2, {32, 0}, kFp32);
        h.forward();
        const auto run = [&](Element kernel_dy) {
            const DeviceRows partials(1, 32, kFp32);
            head_norm_backward(row_kernels().get(head_norm_backward_kernel({32, 0}, kernel_dy)),
                               row_kernels().get(norm_weight_gradient_kernel()),
                               {.dy_RND = h.dy_RND.tensor(),
                                .x_RND = h.x_RND.tensor(),
                                .weight_D = h.weight_1D.tensor().data,
                                .inverse_rms_RN = h.inverse_rms_1N.floats(),
                                .rotary = h.rotary(),
                                .dx_RND = h.dx_RND.tensor(),
                                .dweight_D = h.dweight_1D.floats()},
                               2,
                               2,
                               {partials.floats(), 1},
                               row_kernels().stream());
            row_kernels().stream().synchronize();
        };
        CHECK_NOTHROW(run(kFp32));
        CHECK_THROWS_AS(run(kBf16), Error);
    }
}

}  // namespace
}  // namespace dflash::kernels
