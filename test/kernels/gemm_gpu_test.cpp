// SPDX-License-Identifier: Apache-2.0
#include "rows/device_array.hpp"
#include "rows/device_rows.hpp"
#include "rows/float8.hpp"

#include <dflash/core/error.hpp>
#include <dflash/kernels/gemm.hpp>

#include <cmath>
#include <cstdint>
#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace dflash::kernels {
namespace {

using test::DeviceArray;
using test::DeviceRows;
using test::random_rows;
using test::row_kernels;

using Values = std::vector<double>;

constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;
constexpr Element kE4M3 = Element::Float8E4M3;
constexpr Element kE5M2 = Element::Float8E5M2;

std::vector<float> random_scales(std::uint64_t id, std::int64_t count) {
    std::vector<float> scales;
    for (const double value : random_rows(id, count, Element::Float32)) {
        scales.push_back(static_cast<float>(std::exp(value)));
    }
    return scales;
}

/// Operands of one product of 8-bit rows, on the device and in fp64.
struct Product {
    GemmShape shape;
    Values a_values;
    Values b_values;
    std::vector<float> a_scales;
    std::vector<float> b_scales;
    DeviceRows a;
    DeviceRows b;
    DeviceRows d;
    DeviceArray<float> a_scale;
    DeviceArray<float> b_scale;

    explicit Product(const GemmShape& of)
        : shape(of),
          a_values(random_rows(31, of.m * of.k, of.a, of.a == kE5M2 ? 1e3 : 30)),
          b_values(random_rows(32, of.n * of.k, of.b, 30)),
          a_scales(random_scales(33, of.m)),
          b_scales(random_scales(34, of.n)),
          a(of.m, of.k, of.a, 32, a_values),
          b(of.n, of.k, of.b, 0, b_values),
          d(of.m, of.n, of.result, 16),
          a_scale(a_scales),
          b_scale(b_scales) {}

    GemmMatrices matrices() const {
        return {.a = a.tensor(),
                .b = b.tensor(),
                .d = d.tensor(),
                .a_scale = a_scale.get(),
                .b_scale = b_scale.get()};
    }

    Values exact() const {
        Values result;
        for (std::int64_t i = 0; i < shape.m; ++i) {
            for (std::int64_t j = 0; j < shape.n; ++j) {
                double sum = 0;
                for (std::int64_t k = 0; k < shape.k; ++k) {
                    sum += a_values[static_cast<std::size_t>(i * shape.k + k)] *
                           b_values[static_cast<std::size_t>(j * shape.k + k)];
                }
                result.push_back(sum * double{a_scales[static_cast<std::size_t>(i)]} *
                                 double{b_scales[static_cast<std::size_t>(j)]});
            }
        }
        return result;
    }
};

/// Whether there are such products here; says why where there are none.
bool has_products(const Gemm& gemm, const Product& product) {
    try {
        gemm.require_float8(product.shape, product.matrices(), kWorkspaceBytes, "a test");
        return true;
    } catch (const Error& error) {
        MESSAGE("no products in 8 bits: ", error.parts().what, " (", error.parts().where, ")");
        CHECK(error.kind() == ErrorKind::Config);
        return false;
    }
}

Values multiply(const Gemm& gemm, const Product& product, const GemmShape& shape) {
    const auto algorithms = gemm.candidates(shape, product.matrices(), 1, kWorkspaceBytes);
    REQUIRE(algorithms.size() == 1);
    const std::vector<char> zeros(static_cast<std::size_t>(kWorkspaceBytes));
    const DeviceArray<char> workspace(zeros);
    gemm.multiply(
        algorithms.front(), shape, product.matrices(), workspace.get(), row_kernels().stream());
    return product.d.fetch();
}

TEST_SUITE("kernels.gemm") {
    TEST_CASE("8-bit rows with their scales are multiplied as in fp64") {
        const Gemm gemm;
        for (const Element a : {kE4M3, kE5M2}) {
            for (const Element result : {Element::Float32, Element::BFloat16}) {
                for (const std::int64_t rows : {1, 37, 256}) {
                    const GemmShape shape{.m = rows,
                                          .n = 176,
                                          .k = 208,
                                          .b_transposed = true,
                                          .result = result,
                                          .a = a,
                                          .b = kE4M3};
                    CAPTURE(shape.id());
                    const Product product(shape);
                    if (!has_products(gemm, product)) {
                        return;
                    }
                    const Values got = multiply(gemm, product, shape);
                    const Values exact = product.exact();
                    // A few of the tensor cores' steps of 2^-13; or half a step of bf16.
                    const double error = test::relative_error(got, exact);
                    MESSAGE(shape.id(), ": ", error);
                    CHECK(error <= (result == Element::Float32 ? 5e-4 : 3e-3));
                    CHECK(multiply(gemm, product, shape) == got);
                }
            }
        }
    }

    TEST_CASE("sums over a vocabulary in 8 bits keep their precision unless fast ones are chosen") {
        const Gemm gemm;
        GemmShape shape{.m = 64,
                        .n = 32,
                        .k = 151936,
                        .b_transposed = true,
                        .result = Element::Float32,
                        .a = kE5M2,
                        .b = kE4M3};
        const Product product(shape);
        if (!has_products(gemm, product)) {
            return;
        }
        const Values exact = product.exact();
        const double error = test::relative_error(multiply(gemm, product, shape), exact);
        shape.fast_sums = true;
        const double fast = test::relative_error(multiply(gemm, product, shape), exact);
        MESSAGE("relative error ", error, ", with fast sums ", fast);
        CHECK(error <= 1e-3);
    }

    TEST_CASE("products in 8 bits of sizes that there are none for are refused with the reason") {
        const Gemm gemm;
        const Product product({.m = 16,
                               .n = 16,
                               .k = 32,
                               .b_transposed = true,
                               .result = Element::Float32,
                               .a = kE4M3,
                               .b = kE4M3});
        GemmShape odd = product.shape;
        odd.n = 24;
        try {
            gemm.require_float8(odd, product.matrices(), kWorkspaceBytes, "draft.head_precision");
            FAIL("24 words are not refused");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Config);
            CHECK(error.parts().what ==
                  "draft.head_precision: a product with a matrix of 24 x 32 in fp8, expected "
                  "multiples of 16");
        }
    }
}

}  // namespace
}  // namespace dflash::kernels
