// SPDX-License-Identifier: Apache-2.0
#include "rows/device_array.hpp"
#include "rows/device_rows.hpp"
#include "rows/float8.hpp"

#include <dflash/core/error.hpp>
#include <dflash/kernels/quantize_rows.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <doctest/doctest.h>
#include <limits>
#include <vector>

namespace dflash::kernels {
namespace {

using test::DeviceArray;
using test::DeviceRows;
using test::random_rows;
using test::row_kernels;

using Values = std::vector<double>;

constexpr Element kE4M3 = Element::Float8E4M3;

struct Outcome {
    Values values;
    std::vector<float> scale;
};

Outcome run(const Values& x, std::int64_t rows, std::int64_t columns) {
    const DeviceRows x_RC(rows, columns, Element::BFloat16, 8, x);
    const DeviceRows y_RC(rows, columns, kE4M3, 16 + (16 - columns % 16) % 16);
    const DeviceArray<float> scale_R(DeviceArray<float>::poison(static_cast<std::size_t>(rows)));
    quantize_rows(row_kernels().get(quantize_rows_kernel()),
                  y_RC.tensor(),
                  scale_R.get(),
                  x_RC.tensor(),
                  rows,
                  columns,
                  row_kernels().stream());
    return {y_RC.fetch(), scale_R.fetch()};
}

/// In fp32, one rounding after another as the kernel is documented.
Outcome expected(const Values& x, std::int64_t rows, std::int64_t columns) {
    Outcome outcome;
    for (std::int64_t r = 0; r < rows; ++r) {
        const auto begin = x.begin() + static_cast<std::ptrdiff_t>(r * columns);
        float largest = 0;
        for (std::int64_t c = 0; c < columns; ++c) {
            largest = std::max(largest, std::abs(static_cast<float>(begin[c])));
        }
        const bool is_zero = largest < 0x1p-100F;
        const float factor = is_zero ? 0 : 448 / largest;
        outcome.scale.push_back(is_zero ? 0 : largest / 448);
        for (std::int64_t c = 0; c < columns; ++c) {
            const float product = static_cast<float>(begin[c]) * factor;
            outcome.values.push_back(test::round_to(kE4M3, double{product}));
        }
    }
    return outcome;
}

bool no_float8() {
    const bool none = !has_float8(row_kernels().architecture());
    if (none) {
        MESSAGE("this GPU has no 8-bit numbers");
    }
    return none;
}

TEST_SUITE("kernels.quantize_rows") {
    TEST_CASE("rows in 8 bits are those of the definition bit for bit, of any length") {
        if (no_float8()) {
            return;
        }
        for (const std::int64_t columns :
             {8, 24, 576, 2048, 4096, 5120, 8192, 8200, 49152, 151936}) {
            for (const std::int64_t rows : {1, 3, 130}) {
                if (rows * columns > 4'000'000) {
                    continue;
                }
                CAPTURE(columns);
                CAPTURE(rows);
                Values x = random_rows(21, rows * columns);
                for (std::int64_t i = 0; i < rows * columns; ++i) {
                    // Rows of all sizes, and an outlier at the end of every other one.
                    double& value = x[static_cast<std::size_t>(i)];
                    value = std::ldexp(value, static_cast<int>(i / columns % 40) - 20);
                    if (i / columns % 2 == 1 && i % columns == columns - 1) {
                        value *= 64;
                    }
                }
                const Outcome got = run(x, rows, columns);
                const Outcome exact = expected(x, rows, columns);
                CHECK(got.values == exact.values);
                CHECK(got.scale == exact.scale);
            }
        }
    }

    TEST_CASE("rows of zeros and of next to nothing are zeros; what is not finite shows") {
        if (no_float8()) {
            return;
        }
        constexpr std::int64_t kColumns = 64;
        Values x = random_rows(22, 5 * kColumns);
        std::fill_n(x.begin(), kColumns, 0.0);
        std::fill_n(x.begin() + kColumns, kColumns, 0x1p-110);
        x[2 * kColumns + 63] = std::numeric_limits<double>::infinity();
        x[3 * kColumns] = std::numeric_limits<double>::quiet_NaN();
        const Outcome got = run(x, 5, kColumns);
        CHECK(std::all_of(got.values.begin(), got.values.begin() + 2 * kColumns, [](double value) {
            return value == 0;
        }));
        CHECK(got.scale[0] == 0);
        CHECK(got.scale[1] == 0);
        CHECK_FALSE(std::isfinite(got.scale[2]));
        CHECK_FALSE(std::isfinite(got.scale[3]));
        const Outcome last = expected({x.begin() + 4 * kColumns, x.end()}, 1, kColumns);
        CHECK(Values(got.values.begin() + 4 * kColumns, got.values.end()) == last.values);
    }

    TEST_CASE("no rows: nothing happens; rows that are no multiple of 8 are refused") {
        if (no_float8()) {
            return;
        }
        const LoadedKernel kernel = row_kernels().get(quantize_rows_kernel());
        quantize_rows(kernel, {}, nullptr, {}, 0, 8, row_kernels().stream());
        const DeviceRows x_RC(1, 16, Element::BFloat16, 0, random_rows(1, 16));
        const DeviceRows y_RC(1, 16, kE4M3);
        const DeviceArray<float> scale_R({0});
        CHECK_THROWS_AS(
            quantize_rows(
                kernel, y_RC.tensor(), scale_R.get(), x_RC.tensor(), 1, 12, row_kernels().stream()),
            Error);
    }
}

}  // namespace
}  // namespace dflash::kernels
