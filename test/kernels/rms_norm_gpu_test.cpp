// SPDX-License-Identifier: Apache-2.0
#include "rows/device_rows.hpp"

#include <dflash/core/error.hpp>
#include <dflash/kernels/rms_norm.hpp>

#include <cmath>
#include <doctest/doctest.h>
#include <functional>
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

// One warp with idle lanes, several vectors, several warps, all lanes in use and not.
constexpr std::int64_t kHiddenSizes[] = {64, 72, 512, 576, 1024, 2560, 4096, 5120, 8184, 8192};

double exactly(double x) {
    return x;
}

/// Everything a norm computes, in fp64; `round` is applied to the result of every elementwise
/// operation.
struct Reference {
    Values inverse_rms;
    Values y;
    Values dx;
    Values dweight;

    Reference(const Values& x, const Values& weight, const Values& dy, Round round)
        : y(x.size()), dx(x.size()), dweight(weight.size(), 0) {
        const std::size_t width = weight.size();
        for (std::size_t begin = 0; begin < x.size(); begin += width) {
            double squares = 0;
            for (std::size_t i = 0; i < width; ++i) {
                squares += x[begin + i] * x[begin + i];
            }
            const double r = 1 / std::sqrt(squares / static_cast<double>(width) + kEps);
            inverse_rms.push_back(r);
            double product = 0;
            for (std::size_t i = 0; i < width; ++i) {
                const double normed = round(x[begin + i] * r);
                y[begin + i] = round(normed * weight[i]);
                if (!dy.empty()) {
                    const double scaled = round(dy[begin + i] * normed);
                    dweight[i] += scaled;
                    product += scaled * weight[i];
                }
            }
            for (std::size_t i = 0; i < width && !dy.empty(); ++i) {
                const double normed = round(x[begin + i] * r);
                const double g = round(dy[begin + i] * weight[i]);
                const double mean = product / static_cast<double>(width);
                dx[begin + i] = round(round(g - round(normed * mean)) * r);
            }
        }
    }
};

Values sum(const Values& a, const Values& b) {
    Values result(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        result[i] = a[i] + b[i];
    }
    return result;
}

Values rounded(Values values) {
    for (double& value : values) {
        value = test::round_to_bf16(value);
    }
    return values;
}

/// One norm with its inputs on the GPU.
struct Norm {
    std::int64_t rows;
    std::int64_t hidden;
    std::int64_t padding;
    Element x_element;
    Element dy_element;
    Values x = random_rows(1, rows* hidden, x_element, 3, 0.5);
    Values weight = random_rows(2, hidden, kBf16, 0.3, 1);
    Values dy = random_rows(3, rows* hidden, dy_element, 0.1);
    DeviceRows x_RH{rows, hidden, x_element, padding, x};
    DeviceRows dy_RH{rows, hidden, dy_element, padding, dy};
    DeviceRows weight_1H{1, hidden, kBf16, 0, weight};
    DeviceRows inverse_rms_1R{1, rows, kFp32};
    DeviceRows y_RH{rows, hidden, kBf16, padding};

    Norm(std::int64_t num_rows,
         std::int64_t hidden_size,
         std::int64_t gap = 0,
         Element x_type = kBf16,
         Element dy_type = kBf16)
        : rows(num_rows),
          hidden(hidden_size),
          padding(gap),
          x_element(x_type),
          dy_element(dy_type) {}

    void forward(const float* known = nullptr) const {
        rms_norm_forward(
            row_kernels().get(rms_norm_forward_kernel({.hidden = hidden, .x = x_element})),
            {.x_RH = x_RH.tensor(),
             .y_RH = y_RH.tensor(),
             .weight_H = weight_1H.tensor().data,
             .inverse_rms_R = known == nullptr ? inverse_rms_1R.floats() : nullptr,
             .known_inverse_rms_R = known},
            rows,
            kEps,
            row_kernels().stream());
    }

    struct Extra {
        RowTensor dx_rounded{};
        RowTensor y{};
        std::int64_t partials = 7;
    };

    void backward(const RowTensor& dx, bool add, float* dweight, const Extra& extra) const {
        const DeviceRows partials(extra.partials, hidden, kFp32);
        rms_norm_backward(row_kernels().get(rms_norm_backward_kernel({.hidden = hidden,
                                                                      .x = x_element,
                                                                      .dy = dy_element,
                                                                      .dx = dx.element,
                                                                      .add = add})),
                          row_kernels().get(norm_weight_gradient_kernel()),
                          {.dy_RH = dy_RH.tensor(),
                           .x_RH = x_RH.tensor(),
                           .weight_H = weight_1H.tensor().data,
                           .inverse_rms_R = inverse_rms_1R.floats(),
                           .dx_RH = dx,
                           .dx_rounded_RH = extra.dx_rounded,
                           .y_RH = extra.y,
                           .dweight_H = dweight},
                          rows,
                          {partials.floats(), extra.partials},
                          row_kernels().stream());
        row_kernels().stream().synchronize();
    }
};

/// The combinations of element types in use, and all bf16.
struct BackwardTypes {
    Element x;
    Element dy;
    Element dx;
    bool add;
};

constexpr BackwardTypes kBackwardTypes[] = {{kBf16, kFp32, kFp32, true},
                                            {kBf16, kFp32, kFp32, false},
                                            {kFp32, kFp32, kBf16, false},
                                            {kBf16, kBf16, kFp32, true},
                                            {kBf16, kBf16, kBf16, false}};

void prepare_kernels() {
    std::vector<KernelSpec> specs;
    for (const std::int64_t hidden : kHiddenSizes) {
        for (const Element x : {kBf16, kFp32}) {
            specs.push_back(rms_norm_forward_kernel({.hidden = hidden, .x = x}));
        }
        specs.push_back(rms_norm_forward_kernel({.hidden = hidden, .add_to_residual = true}));
        for (const BackwardTypes& t : kBackwardTypes) {
            specs.push_back(rms_norm_backward_kernel(
                {.hidden = hidden, .x = t.x, .dy = t.dy, .dx = t.dx, .add = t.add}));
        }
    }
    row_kernels().prepare(specs);
}

TEST_SUITE("kernels.rms_norm") {
    TEST_CASE("forward: is as good as fp64 rounded once, for all sizes, types and row counts") {
        prepare_kernels();
        for (const std::int64_t hidden : kHiddenSizes) {
            for (const std::int64_t rows : {1, 5, 33}) {
                for (const Element x : {kBf16, kFp32}) {
                    CAPTURE(hidden);
                    CAPTURE(rows);
                    CAPTURE(x == kFp32);
                    const Norm norm(rows, hidden, /*gap=*/rows == 1 ? 0 : 24, x);
                    norm.forward();
                    const Reference exact(norm.x, norm.weight, {}, exactly);
                    const Reference naive(norm.x, norm.weight, {}, test::round_to_bf16);
                    const Values y = norm.y_RH.fetch();
                    check_against_naive("y", y, exact.y, naive.y);
                    check_against_naive("y once rounded", y, exact.y, rounded(exact.y));
                    check_fp32("inverse rms", norm.inverse_rms_1R.fetch(), exact.inverse_rms);
                }
            }
        }
    }

    TEST_CASE("forward: makes the same bits again out of the inverse rms") {
        for (const std::int64_t hidden : {64, 576, 4096}) {
            CAPTURE(hidden);
            const Norm norm(9, hidden, 8);
            norm.forward();
            const Values y = norm.y_RH.fetch();
            norm.y_RH.fetch();
            norm.forward(norm.inverse_rms_1R.floats());
            CHECK(norm.y_RH.fetch() == y);
        }
    }

    TEST_CASE("forward: adds to the residual first, rounded, and norms that") {
        for (const std::int64_t hidden : kHiddenSizes) {
            CAPTURE(hidden);
            const Norm norm(11, hidden, 8);
            const Values residual = random_rows(4, norm.rows * hidden, kBf16, 2);
            const DeviceRows residual_RH(norm.rows, hidden, kBf16, 16, residual);
            rms_norm_forward(row_kernels().get(rms_norm_forward_kernel(
                                 {.hidden = hidden, .add_to_residual = true})),
                             {.x_RH = norm.x_RH.tensor(),
                              .residual_RH = residual_RH.tensor(),
                              .y_RH = norm.y_RH.tensor(),
                              .weight_H = norm.weight_1H.tensor().data},
                             norm.rows,
                             kEps,
                             row_kernels().stream());
            const Values expected = rounded(sum(residual, norm.x));
            CHECK(residual_RH.fetch() == expected);
            const Reference exact(expected, norm.weight, {}, exactly);
            check_against_naive("y", norm.y_RH.fetch(), exact.y, rounded(exact.y));
        }
    }

    TEST_CASE("forward: a row does not depend on the others") {
        const Norm all(37, 2560);
        const Norm one(1, 2560);  // the same first row
        all.forward();
        one.forward();
        const Values y = all.y_RH.fetch();
        CHECK(Values(y.begin(), y.begin() + 2560) == one.y_RH.fetch());
    }

    TEST_CASE("backward: is within fp32 rounding of fp64 for all sizes, types and row counts") {
        for (const std::int64_t hidden : kHiddenSizes) {
            for (const BackwardTypes& t : kBackwardTypes) {
                for (const std::int64_t rows : {1, 6, 40}) {
                    CAPTURE(hidden);
                    CAPTURE(rows);
                    CAPTURE(t.x == kFp32);
                    CAPTURE(t.dy == kFp32);
                    CAPTURE(t.dx == kFp32);
                    CAPTURE(t.add);
                    const Norm norm(rows, hidden, rows == 1 ? 0 : 24, t.x, t.dy);
                    norm.forward();
                    const Values y = norm.y_RH.fetch();
                    const Values before = random_rows(5, rows * hidden, t.dx);
                    const Values dweight_before = random_rows(6, hidden, kFp32);
                    const DeviceRows dx_RH(rows, hidden, t.dx, 8, before);
                    const DeviceRows dweight_1H(1, hidden, kFp32, 0, dweight_before);
                    const DeviceRows rounded_RH(rows, hidden, kBf16, 16);
                    const DeviceRows y_again_RH(rows, hidden, kBf16, 8);
                    norm.backward(dx_RH.tensor(),
                                  t.add,
                                  dweight_1H.floats(),
                                  {rounded_RH.tensor(), y_again_RH.tensor()});

                    const Reference exact(norm.x, norm.weight, norm.dy, exactly);
                    const Reference naive(norm.x, norm.weight, norm.dy, test::round_to_bf16);
                    const Values exact_dx = t.add ? sum(before, exact.dx) : exact.dx;
                    const Values dx = dx_RH.fetch();
                    if (t.dx == kFp32) {
                        check_fp32("dx", dx, exact_dx);
                    } else {
                        check_against_naive("dx", dx, exact_dx, naive.dx);
                        check_against_naive("dx once rounded", dx, exact_dx, rounded(exact_dx));
                    }
                    check_fp32("dweight", dweight_1H.fetch(), sum(dweight_before, exact.dweight));
                    CHECK(rounded_RH.fetch() == rounded(dx));
                    CHECK(y_again_RH.fetch() == y);
                }
            }
        }
    }

    TEST_CASE("backward: writes into dy's own memory") {
        const Norm norm(21, 1024, 0, kBf16, kFp32);
        norm.forward();
        const DeviceRows dx_RH(21, 1024, kFp32);
        const DeviceRows dweight_1H(1, 1024, kFp32, 0, Values(1024, 0));
        const DeviceRows dweight_in_place_1H(1, 1024, kFp32, 0, Values(1024, 0));
        norm.backward(dx_RH.tensor(), false, dweight_1H.floats(), {});
        norm.backward(norm.dy_RH.tensor(), false, dweight_in_place_1H.floats(), {});
        CHECK(norm.dy_RH.fetch() == dx_RH.fetch());
        CHECK(dweight_in_place_1H.fetch() == dweight_1H.fetch());
    }

    TEST_CASE("backward: gives the same bits every time, and dx whatever the partials") {
        const Norm norm(1000, 4096, 0, kBf16, kFp32);
        norm.forward();
        Values first_dx;
        Values first_dweight;
        for (int run = 0; run < 20; ++run) {
            const DeviceRows dx_RH(1000, 4096, kFp32);
            const DeviceRows dweight_1H(1, 4096, kFp32, 0, Values(4096, 0));
            norm.backward(dx_RH.tensor(), false, dweight_1H.floats(), {.partials = 264});
            const Values dx = dx_RH.fetch();
            const Values dweight = dweight_1H.fetch();
            if (run == 0) {
                first_dx = dx;
                first_dweight = dweight;
            }
            REQUIRE(dx == first_dx);
            REQUIRE(dweight == first_dweight);
        }
        for (const std::int64_t partials : {1, 13, 2000}) {
            CAPTURE(partials);
            const DeviceRows dx_RH(1000, 4096, kFp32);
            const DeviceRows dweight_1H(1, 4096, kFp32, 0, Values(4096, 0));
            norm.backward(dx_RH.tensor(), false, dweight_1H.floats(), {.partials = partials});
            CHECK(dx_RH.fetch() == first_dx);
            check_fp32("dweight", dweight_1H.fetch(), first_dweight);
        }
    }

    TEST_CASE("no rows: nothing happens, also without memory") {
        const DeviceRows weight_1H(1, 64, kBf16, 0, Values(64, 1));
        const DeviceRows dweight_1H(1, 64, kFp32, 0, Values(64, 2));
        const RowTensor none_bf16{nullptr, 64, kBf16};
        const RowTensor none_fp32{nullptr, 64, kFp32};
        rms_norm_forward(
            row_kernels().get(rms_norm_forward_kernel({.hidden = 64})),
            {.x_RH = none_bf16, .y_RH = none_bf16, .weight_H = weight_1H.tensor().data},
            0,
            kEps,
            row_kernels().stream());
        rms_norm_backward(row_kernels().get(rms_norm_backward_kernel(
                              {.hidden = 64, .dy = kFp32, .dx = kFp32, .add = true})),
                          row_kernels().get(norm_weight_gradient_kernel()),
                          {.dy_RH = none_fp32,
                           .x_RH = none_bf16,
                           .weight_H = weight_1H.tensor().data,
                           .dx_RH = none_fp32,
                           .dweight_H = dweight_1H.floats()},
                          0,
                          {},
                          row_kernels().stream());
        CHECK(dweight_1H.fetch() == Values(64, 2));
    }

    TEST_CASE("tensors that do not fit the kernel are refused") {
        const Norm norm(2, 64);
        const LoadedKernel kernel = row_kernels().get(rms_norm_forward_kernel({.hidden = 64}));
        const auto run = [&](const std::function<void(RmsNormForwardTensors&)>& change) {
            RmsNormForwardTensors tensors{.x_RH = norm.x_RH.tensor(),
                                          .y_RH = norm.y_RH.tensor(),
                                          .weight_H = norm.weight_1H.tensor().data};
            change(tensors);
            rms_norm_forward(kernel, tensors, 2, kEps, row_kernels().stream());
        };
        CHECK_NOTHROW(run([](RmsNormForwardTensors&) {}));
        CHECK_THROWS_AS(run([](auto& t) { t.x_RH.element = kFp32; }), Error);
        CHECK_THROWS_AS(run([](auto& t) { t.y_RH.row_stride = 68; }), Error);
        CHECK_THROWS_AS(run([](auto& t) { t.y_RH.row_stride = 56; }), Error);
        CHECK_THROWS_AS(run([](auto& t) { t.x_RH.data = static_cast<char*>(t.x_RH.data) + 8; }),
                        Error);
        CHECK_THROWS_AS(run([](auto& t) { t.weight_H = nullptr; }), Error);
        CHECK_THROWS_AS(run([](auto& t) { t.residual_RH = t.y_RH; }), Error);
        row_kernels().stream().synchronize();
    }
}

}  // namespace
}  // namespace dflash::kernels
