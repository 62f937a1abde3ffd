// SPDX-License-Identifier: Apache-2.0
#include "rows/device_rows.hpp"

#include <dflash/core/error.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/kernels/swiglu.hpp>

#include <cmath>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <vector>

namespace dflash::kernels {
namespace {

using test::check_against_naive;
using test::DeviceRows;
using test::random_rows;
using test::row_kernels;

using Values = std::vector<double>;
using Round = double (*)(double);

constexpr Element kBf16 = Element::BFloat16;

double exactly(double x) {
    return x;
}

/// In fp64; `round` is applied to the result of every elementwise operation.
struct Reference {
    Values y;
    Values dgate;
    Values dup;

    Reference(const Values& gate, const Values& up, const Values& dy, Round round) {
        for (std::size_t i = 0; i < gate.size(); ++i) {
            const double s = round(1 / (1 + std::exp(-gate[i])));
            const double activation = round(gate[i] * s);
            y.push_back(round(activation * up[i]));
            const double slope = round(s * round(1 + round(gate[i] * round(1 - s))));
            dgate.push_back(round(round(dy[i] * up[i]) * slope));
            dup.push_back(round(dy[i] * activation));
        }
    }
};

/// gate and up as the halves of one buffer, as the model has them.
struct Activation {
    std::int64_t rows;
    std::int64_t inner;
    std::int64_t padding;
    Values gate;
    Values up = random_rows(2, rows* inner, kBf16, 2);
    Values dy = random_rows(3, rows* inner, kBf16, 0.1);
    DeviceRows gate_up_R2I{rows, 2 * inner, kBf16, padding};
    DeviceRows dy_RI{rows, inner, kBf16, padding, dy};
    DeviceRows y_RI{rows, inner, kBf16, padding};
    DeviceRows dgate_up_R2I{rows, 2 * inner, kBf16, padding};

    Activation(std::int64_t num_rows, std::int64_t inner_size, std::int64_t gap, Values gates)
        : rows(num_rows), inner(inner_size), padding(gap), gate(std::move(gates)) {
        gate_up_R2I.set(joined(gate, up));
    }

    Activation(std::int64_t num_rows, std::int64_t inner_size, std::int64_t gap = 0)
        : Activation(num_rows, inner_size, gap, random_rows(1, num_rows * inner_size, kBf16, 3)) {}

    /// Rows of a and of b side by side.
    Values joined(const Values& a, const Values& b) const {
        const auto columns = static_cast<std::ptrdiff_t>(inner);
        Values result;
        for (std::ptrdiff_t row = 0; row < rows; ++row) {
            for (const Values* half : {&a, &b}) {
                const auto begin = half->begin() + row * columns;
                result.insert(result.end(), begin, begin + columns);
            }
        }
        return result;
    }

    void forward() const {
        swiglu_forward(row_kernels().get(swiglu_forward_kernel()),
                       {gate_up_R2I.tensor(), gate_up_R2I.columns_from(inner), y_RI.tensor()},
                       rows,
                       inner,
                       row_kernels().stream());
    }

    void backward(const RowTensor& y = {}) const {
        swiglu_backward(row_kernels().get(swiglu_backward_kernel()),
                        {.dy_RI = dy_RI.tensor(),
                         .gate_RI = gate_up_R2I.tensor(),
                         .up_RI = gate_up_R2I.columns_from(inner),
                         .dgate_RI = dgate_up_R2I.tensor(),
                         .dup_RI = dgate_up_R2I.columns_from(inner),
                         .y_RI = y},
                        rows,
                        inner,
                        row_kernels().stream());
    }
};

TEST_SUITE("kernels.swiglu") {
    TEST_CASE("forward and backward: are as good as fp64 rounded once, for odd sizes and strides") {
        for (const std::int64_t inner : {8, 72, 160, 1536, 12288}) {
            for (const std::int64_t rows : {1, 3, 35}) {
                CAPTURE(inner);
                CAPTURE(rows);
                const Activation a(rows, inner, rows == 1 ? 0 : 40);
                a.forward();
                const Values y = a.y_RI.fetch();
                const Reference exact(a.gate, a.up, a.dy, exactly);
                const Reference naive(a.gate, a.up, a.dy, test::round_to_bf16);
                const Reference once = [&] {
                    Reference r = exact;
                    for (Values* values : {&r.y, &r.dgate, &r.dup}) {
                        for (double& value : *values) {
                            value = test::round_to_bf16(value);
                        }
                    }
                    return r;
                }();
                check_against_naive("y", y, exact.y, naive.y);
                check_against_naive("y once rounded", y, exact.y, once.y);

                a.backward();
                const Values gradients = a.dgate_up_R2I.fetch();
                const Values exact_gradients = a.joined(exact.dgate, exact.dup);
                check_against_naive(
                    "gradients", gradients, exact_gradients, a.joined(naive.dgate, naive.dup));
                check_against_naive("gradients once rounded",
                                    gradients,
                                    exact_gradients,
                                    a.joined(once.dgate, once.dup));

                const DeviceRows y_again_RI(rows, inner, kBf16, 8);
                a.backward(y_again_RI.tensor());
                CHECK(y_again_RI.fetch() == y);
                CHECK(a.dgate_up_R2I.fetch() == gradients);
            }
        }
    }

    TEST_CASE("extreme gates: saturate without NaN") {
        const Values extremes = {
            0, -0.0, 1e-30, -1e-30, 20, -20, 87, -87, 89, -89, 100, -100, 3e4, -3e4, 3e38, -3e38};
        Values gate;
        for (const double value : extremes) {
            gate.push_back(test::round_to_bf16(value));
        }
        const Activation a(2, 8, 0, gate);
        a.forward();
        a.backward();
        const Values y = a.y_RI.fetch();
        const Values gradients = a.dgate_up_R2I.fetch();
        const Reference exact(a.gate, a.up, a.dy, exactly);
        const Values expected = a.joined(exact.dgate, exact.dup);
        for (std::size_t i = 0; i < y.size(); ++i) {
            CAPTURE(i);
            // Absolute: sigmoids below the smallest normal number are zero.
            const double bound = 0.01 * std::abs(exact.y[i]) + 1e-30;
            if (std::abs(exact.y[i]) < 3e38) {
                CHECK(std::abs(y[i] - exact.y[i]) <= bound);
            }
        }
        for (std::size_t i = 0; i < expected.size(); ++i) {
            CAPTURE(i);
            if (std::abs(expected[i]) < 3e38) {
                CHECK(std::abs(gradients[i] - expected[i]) <= 0.01 * std::abs(expected[i]) + 1e-30);
            }
        }
    }

    TEST_CASE("repeated: gives the same bits every time") {
        const Activation a(300, 1536);
        a.backward(a.y_RI.tensor());
        const Values y = a.y_RI.fetch();
        const Values gradients = a.dgate_up_R2I.fetch();
        for (int run = 0; run < 10; ++run) {
            a.backward(a.y_RI.tensor());
            REQUIRE(a.y_RI.fetch() == y);
            REQUIRE(a.dgate_up_R2I.fetch() == gradients);
        }
    }

    TEST_CASE("rows that lie more than 2^32 elements apart are found") {
        // Rows of 2^31 + 64 elements; only their beginnings are used.
        constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 64;
        constexpr std::int64_t kRows = 3;
        constexpr std::int64_t kInner = 64;
        unsigned char* data = nullptr;
        void* memory = nullptr;
        const cudaError_t allocated = cudaMalloc(&memory, (2 * kStride + 3 * kInner) * 2);
        if (allocated != cudaSuccess) {
            cudaGetLastError();
            MESSAGE("left out: the GPU has no 9 GB to spare");
            return;
        }
        data = static_cast<unsigned char*>(memory);
        const Activation dense(kRows, kInner);
        dense.forward();
        const Values expected = dense.y_RI.fetch();
        const RowTensor far{data, kStride, kBf16};
        const RowTensor far_up{data + 2 * kInner, kStride, kBf16};
        const RowTensor far_y{data + 4 * kInner, kStride, kBf16};
        gpu::check(cudaMemcpy2D(data,
                                kStride * 2,
                                dense.gate_up_R2I.tensor().data,
                                4 * kInner,
                                4 * kInner,
                                kRows,
                                cudaMemcpyDeviceToDevice));
        gpu::check(cudaDeviceSynchronize());
        swiglu_forward(row_kernels().get(swiglu_forward_kernel()),
                       {far, far_up, far_y},
                       kRows,
                       kInner,
                       row_kernels().stream());
        row_kernels().stream().synchronize();
        const DeviceRows y_RI(kRows, kInner, kBf16);
        gpu::check(cudaMemcpy2D(y_RI.tensor().data,
                                2 * kInner,
                                far_y.data,
                                kStride * 2,
                                2 * kInner,
                                kRows,
                                cudaMemcpyDeviceToDevice));
        gpu::check(cudaDeviceSynchronize());
        CHECK(y_RI.fetch() == expected);
        gpu::check(cudaFree(memory));
    }

    TEST_CASE("no rows: nothing happens, also without memory") {
        const RowTensor none{nullptr, 64, kBf16};
        swiglu_forward(row_kernels().get(swiglu_forward_kernel()),
                       {none, none, none},
                       0,
                       64,
                       row_kernels().stream());
        swiglu_backward(row_kernels().get(swiglu_backward_kernel()),
                        {none, none, none, none, none},
                        0,
                        64,
                        row_kernels().stream());
        row_kernels().stream().synchronize();
    }

    TEST_CASE("sizes that vectors do not divide are refused") {
        const Activation a(2, 8);
        const auto run = [&] {
            swiglu_forward(row_kernels().get(swiglu_forward_kernel()),
                           {a.gate_up_R2I.tensor(), a.gate_up_R2I.columns_from(8), a.y_RI.tensor()},
                           2,
                           4,
                           row_kernels().stream());
        };
        CHECK_THROWS_AS(run(), Error);
    }
}

}  // namespace
}  // namespace dflash::kernels
