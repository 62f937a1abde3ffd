// SPDX-License-Identifier: Apache-2.0
#include "rows/device_array.hpp"
#include "rows/device_rows.hpp"
#include "rows/float8.hpp"

#include <dflash/core/error.hpp>
#include <dflash/kernels/cross_entropy.hpp>
#include <dflash/kernels/quantize_rows.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <doctest/doctest.h>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace dflash::kernels {
namespace {

using test::DeviceArray;
using test::DeviceRows;
using test::random_rows;
using test::row_kernels;

using Values = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// In fp64.
struct Reference {
    Values cross_entropy;
    std::vector<std::int64_t> argmax;
    Values gradient;
    Values below;  // label's logit less the maximum

    Reference(const Values& logits, const std::vector<std::int64_t>& labels, std::size_t V) {
        for (std::size_t row = 0; row < labels.size(); ++row) {
            const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row * V);
            const auto largest = std::max_element(begin, begin + static_cast<std::ptrdiff_t>(V));
            const auto label = static_cast<std::size_t>(labels[row]);
            double others = 0;
            for (std::size_t i = 0; i < V; ++i) {
                others += i == label ? 0 : std::exp(logits[row * V + i] - *largest);
            }
            const double own = std::exp(logits[row * V + label] - *largest);
            argmax.push_back(largest - begin);
            below.push_back(logits[row * V + label] - *largest);
            cross_entropy.push_back(below.back() == 0 ? std::log1p(others)
                                                      : std::log(others + own) - below.back());
            for (std::size_t i = 0; i < V; ++i) {
                const double p = std::exp(logits[row * V + i] - *largest) / (others + own);
                gradient.push_back(i == label ? -others / (others + own) : p);
            }
        }
    }
};

enum class Place { Separate, InPlace, None };

struct Outcome {
    std::vector<float> cross_entropy;
    std::vector<std::int64_t> argmax;
    Values gradient;
    std::vector<float> scale{};  // of a gradient in e5m2
};

/// Runs the kernel on rows with gaps.
Outcome run(const Values& logits,
            const std::vector<std::int64_t>& labels,
            std::int64_t V,
            Element element,
            Place place) {
    const auto C = static_cast<std::int64_t>(labels.size());
    // Rows lie 16 bytes apart, or a multiple of it, as bf16 too.
    const std::int64_t padding = (8 - V % 8) % 8 + 8;
    const DeviceRows logits_CV(C, V, element, padding, logits);
    const DeviceRows gradient_CV(C, V, Element::BFloat16, padding);
    const DeviceArray<std::int64_t> label_C(labels);
    const DeviceArray<float> cross_entropy_C(DeviceArray<float>::poison(labels.size()));
    const DeviceArray<std::int64_t> argmax_C(DeviceArray<std::int64_t>::poison(labels.size()));
    CrossEntropyTensors tensors{.logits_CV = logits_CV.tensor(),
                                .label_C = label_C.get(),
                                .cross_entropy_C = cross_entropy_C.get(),
                                .argmax_C = argmax_C.get()};
    if (place == Place::Separate) {
        tensors.gradient_CV = gradient_CV.tensor();
    } else if (place == Place::InPlace) {
        const bool wide = element == Element::Float32;
        tensors.gradient_CV = {tensors.logits_CV.data,
                               tensors.logits_CV.row_stride * (wide ? 2 : 1),
                               Element::BFloat16};
    }
    cross_entropy(
        row_kernels().get(cross_entropy_kernel(element)), tensors, C, V, row_kernels().stream());
    Outcome outcome{cross_entropy_C.fetch(), argmax_C.fetch(), {}};
    if (place == Place::Separate) {
        outcome.gradient = gradient_CV.fetch();
        const Values untouched = logits_CV.fetch();
        CHECK(
            std::equal(untouched.begin(), untouched.end(), logits.begin(), [](double a, double b) {
                return a == b || (std::isnan(a) && std::isnan(b));
            }));
    } else if (place == Place::InPlace && element == Element::BFloat16) {
        outcome.gradient = logits_CV.fetch();
    } else if (place == Place::InPlace) {
        const Values words = logits_CV.fetch();  // two gradients each, as far as they reach
        for (std::int64_t i = 0; i < C * V; ++i) {
            const auto word = std::bit_cast<std::uint32_t>(
                static_cast<float>(words[static_cast<std::size_t>(i / V * V + i % V / 2)]));
            const std::uint32_t bits = i % V % 2 == 0 ? word << 16 : word & 0xffff0000U;
            outcome.gradient.push_back(double{std::bit_cast<float>(bits)});
        }
    } else {
        CHECK(logits_CV.fetch().size() == logits.size());
    }
    return outcome;
}

/// Of fp32 logits, with a gradient in e5m2 in their memory.
Outcome run_float8(const Values& logits, const std::vector<std::int64_t>& labels, std::int64_t V) {
    const auto C = static_cast<std::int64_t>(labels.size());
    const std::int64_t padding = (8 - V % 8) % 8 + 8;
    const DeviceRows logits_CV(C, V, Element::Float32, padding, logits);
    const DeviceArray<std::int64_t> label_C(labels);
    const DeviceArray<float> cross_entropy_C(DeviceArray<float>::poison(labels.size()));
    const DeviceArray<std::int64_t> argmax_C(DeviceArray<std::int64_t>::poison(labels.size()));
    const DeviceArray<float> scale_C(DeviceArray<float>::poison(labels.size()));
    const RowTensor memory = logits_CV.tensor();
    cross_entropy(row_kernels().get(cross_entropy_kernel(Element::Float32, Element::Float8E5M2)),
                  {.logits_CV = memory,
                   .label_C = label_C.get(),
                   .cross_entropy_C = cross_entropy_C.get(),
                   .argmax_C = argmax_C.get(),
                   .gradient_CV = {memory.data, memory.row_stride * 4, Element::Float8E5M2},
                   .gradient_scale_C = scale_C.get()},
                  C,
                  V,
                  row_kernels().stream());
    Outcome outcome{cross_entropy_C.fetch(), argmax_C.fetch(), {}, scale_C.fetch()};
    const Values words = logits_CV.fetch_bits();
    for (std::int64_t i = 0; i < C * V; ++i) {
        const auto word =
            static_cast<std::uint32_t>(words[static_cast<std::size_t>(i / V * V + i % V / 4)]);
        const auto bits = static_cast<std::uint8_t>(word >> (i % V % 4 * 8));
        outcome.gradient.push_back(test::float8_value(Element::Float8E5M2, bits));
    }
    return outcome;
}

std::vector<std::int64_t> random_labels(std::int64_t rows, std::int64_t V) {
    std::vector<std::int64_t> labels;
    for (const double value : random_rows(77, rows, Element::Float32, 1e6)) {
        labels.push_back(std::llabs(std::llround(value)) % V);
    }
    return labels;
}

/// Every element by itself: the loss to fp32's precision, the gradient to one rounding to bf16.
void check(const Outcome& got, const Reference& exact) {
    CHECK(got.argmax == exact.argmax);
    for (std::size_t row = 0; row < exact.cross_entropy.size(); ++row) {
        CAPTURE(row);
        const double loss = exact.cross_entropy[row];
        const double bound =
            exact.below[row] == 0 ? 2e-5 * loss : 4e-6 * std::max(1.0, -exact.below[row]);
        CHECK(std::abs(double{got.cross_entropy[row]} - loss) <= bound);
    }
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < got.gradient.size(); ++i) {
        const double expected = exact.gradient[i];
        const double bound = std::abs(expected) * (1.0 / 256) * 1.01 + 1e-37;
        if (!(std::abs(got.gradient[i] - expected) <= bound)) {
            ++wrong;
        }
    }
    CHECK(wrong == 0);
}

constexpr Element kBoth[] = {Element::BFloat16, Element::Float32};

TEST_SUITE("kernels.cross_entropy") {
    TEST_CASE("loss, argmax and gradient are those of fp64, for odd sizes, in place or not") {
        for (const Element element : kBoth) {
            for (const std::int64_t V : {1, 5, 8, 24, 500, 1003, 16391, 49152, 151936}) {
                for (const std::int64_t rows : {1, 3, 17}) {
                    CAPTURE(static_cast<int>(element));
                    CAPTURE(V);
                    CAPTURE(rows);
                    const Values logits = random_rows(5, rows * V, element, 3);
                    const std::vector<std::int64_t> labels = random_labels(rows, V);
                    const Reference exact(logits, labels, static_cast<std::size_t>(V));
                    const Outcome separate = run(logits, labels, V, element, Place::Separate);
                    check(separate, exact);
                    const Outcome in_place = run(logits, labels, V, element, Place::InPlace);
                    CHECK(in_place.gradient == separate.gradient);
                    CHECK(in_place.cross_entropy == separate.cross_entropy);
                    CHECK(in_place.argmax == separate.argmax);
                    const Outcome without = run(logits, labels, V, element, Place::None);
                    CHECK(without.cross_entropy == separate.cross_entropy);
                    CHECK(without.argmax == separate.argmax);
                }
            }
        }
    }

    TEST_CASE("a label that is all but certain keeps loss and gradient to their last bits") {
        constexpr std::int64_t kV = 4099;
        for (const Element element : kBoth) {
            for (const double lead : {4.0, 16.0, 30.0, 60.0}) {
                CAPTURE(lead);
                const std::vector<std::int64_t> labels{7, 4098, 2048};
                Values logits = random_rows(6, 3 * kV, element, 1);
                for (std::size_t row = 0; row < labels.size(); ++row) {
                    logits[row * kV + static_cast<std::size_t>(labels[row])] = lead + 8;
                }
                const Reference exact(logits, labels, kV);
                check(run(logits, labels, kV, element, Place::InPlace), exact);
            }
        }
    }

    TEST_CASE("of equal largest logits the first is the argmax, wherever it lies") {
        constexpr std::int64_t kV = 20011;
        for (const Element element : kBoth) {
            for (const std::int64_t first : {0, 1, 7, 8, 4095, 4096, 8191, 20000, 20010}) {
                CAPTURE(first);
                Values logits(kV, -1.5);
                for (std::int64_t i = first; i < kV; i += 3) {
                    logits[static_cast<std::size_t>(i)] = 2.25;
                }
                const std::vector<std::int64_t> labels{kV / 2};
                const Outcome got = run(logits, labels, kV, element, Place::Separate);
                check(got, Reference(logits, labels, kV));
                CHECK(got.argmax.front() == first);
            }
            const Values flat(kV, 0.5);
            CHECK(run(flat, {3}, kV, element, Place::InPlace).argmax.front() == 0);
        }
    }

    TEST_CASE("words that are ruled out have no part; what is not finite shows") {
        constexpr std::int64_t kV = 9000;
        for (const Element element : kBoth) {
            Values logits = random_rows(8, 5 * kV, element, 2);
            for (std::size_t i = 0; i < kV; i += 2) {
                logits[i] = -kInfinity;
            }
            logits[kV + 100] = kInfinity;
            logits[2 * kV + 8999] = std::numeric_limits<double>::quiet_NaN();
            for (std::size_t i = 0; i < kV; ++i) {
                logits[3 * kV + i] = test::round_to(element, i == 5 ? 2e38 : -2e38);
            }
            const std::vector<std::int64_t> labels{11, 3, 3, 5, 9};
            const Outcome got = run(logits, labels, kV, element, Place::Separate);
            CHECK_FALSE(std::isfinite(got.cross_entropy[1]));
            CHECK_FALSE(std::isfinite(got.cross_entropy[2]));
            CHECK(got.cross_entropy[3] == 0);
            const auto sum = [&](std::size_t row) {
                double total = 0;
                for (std::size_t i = row * kV; i < (row + 1) * kV; ++i) {
                    total += got.gradient[i];
                }
                return total;
            };
            CHECK_FALSE(std::isfinite(sum(1)));
            CHECK_FALSE(std::isfinite(sum(2)));
            CHECK(sum(3) == 0);
            for (const std::size_t row : {std::size_t{0}, std::size_t{4}}) {
                const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row * kV);
                const Values one(begin, begin + kV);
                const Reference exact(one, {labels[row]}, kV);
                const auto from = got.gradient.begin() + static_cast<std::ptrdiff_t>(row * kV);
                check({{got.cross_entropy[row]}, {got.argmax[row]}, Values(from, from + kV)},
                      exact);
            }
        }
    }

    TEST_CASE("a row gives the same bits alone, among others and every time") {
        constexpr std::int64_t kV = 49152;
        constexpr std::size_t kRows = 150;
        for (const Element element : kBoth) {
            const Values logits = random_rows(9, kRows * kV, element, 3);
            const std::vector<std::int64_t> labels = random_labels(kRows, kV);
            const Outcome first = run(logits, labels, kV, element, Place::InPlace);
            const Outcome again = run(logits, labels, kV, element, Place::InPlace);
            CHECK(again.cross_entropy == first.cross_entropy);
            CHECK(again.gradient == first.gradient);
            const std::size_t row = 140;
            const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row * kV);
            const Outcome alone =
                run(Values(begin, begin + kV), {labels[row]}, kV, element, Place::InPlace);
            CHECK(alone.cross_entropy.front() == first.cross_entropy[row]);
            const auto from = first.gradient.begin() + static_cast<std::ptrdiff_t>(row * kV);
            CHECK(alone.gradient == Values(from, from + kV));
        }
    }

    TEST_CASE("a gradient in 8 bits has the label exactly and the others to half a step") {
        if (!has_float8(row_kernels().architecture())) {
            MESSAGE("this GPU has no 8-bit numbers");
            return;
        }
        for (const std::int64_t V : {4, 5, 24, 500, 1003, 16391, 49152, 151936}) {
            for (const double spread : {0.05, 3.0, 9.0}) {
                CAPTURE(V);
                CAPTURE(spread);
                constexpr std::int64_t kRows = 5;
                const Values logits = random_rows(12, kRows * V, Element::Float32, spread);
                const std::vector<std::int64_t> labels = random_labels(kRows, V);
                const Reference exact(logits, labels, static_cast<std::size_t>(V));
                const Outcome got = run_float8(logits, labels, V);
                check({got.cross_entropy, got.argmax, {}}, exact);
                std::size_t wrong = 0;
                for (std::size_t i = 0; i < got.gradient.size(); ++i) {
                    const std::size_t row = i / static_cast<std::size_t>(V);
                    const double scale = got.scale[row];
                    const bool is_label = static_cast<std::int64_t>(i) % V == labels[row];
                    const double expected = exact.gradient[i] / scale;
                    // Half a step: an eighth of a number, or half of the smallest one. Beside it
                    // what the exponential is off by.
                    const double bound =
                        std::max(std::abs(expected) / 8, 0x1p-17) + 2e-5 * std::abs(expected);
                    wrong += std::abs(got.gradient[i] - expected) <= bound ? 0U : 1U;
                    wrong += is_label && got.gradient[i] != -32768 ? 1U : 0U;
                }
                CHECK(wrong == 0);
                for (std::size_t row = 0; row < labels.size(); ++row) {
                    const double label = exact.gradient[row * static_cast<std::size_t>(V) +
                                                        static_cast<std::size_t>(labels[row])];
                    CHECK(double{got.scale[row]} == doctest::Approx(-label / 32768).epsilon(2e-5));
                }
                const Outcome again = run_float8(logits, labels, V);
                CHECK(again.gradient == got.gradient);
                CHECK(again.scale == got.scale);
            }
        }
    }

    TEST_CASE("in 8 bits a label without others is zeros, and what is not finite shows") {
        if (!has_float8(row_kernels().architecture())) {
            MESSAGE("this GPU has no 8-bit numbers");
            return;
        }
        constexpr std::size_t kV = 5000;
        Values logits = random_rows(13, 3 * kV, Element::Float32, 1);
        logits[11] = 500;
        logits[kV + 100] = kInfinity;
        logits[2 * kV + 4999] = std::numeric_limits<double>::quiet_NaN();
        const Outcome got = run_float8(logits, {11, 3, 3}, kV);
        CHECK(got.cross_entropy[0] == 0);
        CHECK(std::all_of(
            got.gradient.begin(), got.gradient.begin() + kV, [](double x) { return x == 0; }));
        CHECK(got.scale[0] == 0);
        CHECK_FALSE(std::isfinite(got.scale[1]));
        CHECK_FALSE(std::isfinite(got.scale[2]));
    }

    TEST_CASE("no rows: nothing happens; a gradient that lies across the logits is refused") {
        const LoadedKernel kernel = row_kernels().get(cross_entropy_kernel(Element::Float32));
        cross_entropy(kernel, {}, 0, 8, row_kernels().stream());
        const DeviceRows logits_CV(
            2, 16, Element::Float32, 0, random_rows(1, 32, Element::Float32));
        const DeviceArray<std::int64_t> label_C({1, 2});
        const DeviceArray<float> loss_C({0, 0});
        const CrossEntropyTensors tensors{
            .logits_CV = logits_CV.tensor(),
            .label_C = label_C.get(),
            .cross_entropy_C = loss_C.get(),
            .argmax_C = label_C.get(),
            .gradient_CV = {logits_CV.tensor().data, 16, Element::BFloat16}};
        CHECK_THROWS_AS(cross_entropy(kernel, tensors, 2, 16, row_kernels().stream()), Error);
    }
}

}  // namespace
}  // namespace dflash::kernels
