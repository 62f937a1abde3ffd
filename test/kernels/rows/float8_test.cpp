// SPDX-License-Identifier: Apache-2.0
#include "float8.hpp"

#include <cmath>
#include <cstdint>
#include <doctest/doctest.h>
#include <vector>

namespace dflash::kernels::test {
namespace {

constexpr Element kE4M3 = Element::Float8E4M3;
constexpr Element kE5M2 = Element::Float8E5M2;

TEST_SUITE("kernels.float8") {
    TEST_CASE("8-bit numbers of the tests are those of the specification's tables") {
        struct Number {
            Element element;
            std::uint8_t bits;
            double value;
        };

        // OFP8 revision 1.0, table 2: largest, smallest normal, largest and smallest subnormal.
        for (const Number& n : std::vector<Number>{{kE4M3, 0x7e, 448},
                                                   {kE4M3, 0x08, 0x1p-6},
                                                   {kE4M3, 0x07, 0.875 * 0x1p-6},
                                                   {kE4M3, 0x01, 0x1p-9},
                                                   {kE4M3, 0xb8, -1},
                                                   {kE5M2, 0x7b, 57344},
                                                   {kE5M2, 0x04, 0x1p-14},
                                                   {kE5M2, 0x03, 0.75 * 0x1p-14},
                                                   {kE5M2, 0x01, 0x1p-16},
                                                   {kE5M2, 0x7c, INFINITY}}) {
            CAPTURE(static_cast<int>(n.bits));
            CHECK(float8_value(n.element, n.bits) == n.value);
        }
        CHECK(std::isnan(float8_value(kE4M3, 0x7f)));
        CHECK(std::isnan(float8_value(kE5M2, 0x7d)));
    }

    TEST_CASE("the nearest 8-bit number is the one itself, and of two the even one") {
        for (const Element element : {kE4M3, kE5M2}) {
            const int largest = element == kE4M3 ? 0x7e : 0x7b;
            for (int bits = 0; bits <= largest; ++bits) {
                CAPTURE(bits);
                const auto code = static_cast<std::uint8_t>(bits);
                const double value = float8_value(element, code);
                CHECK(float8_bits(element, value) == code);
                CHECK(float8_bits(element, -value) == (code | 0x80));
                if (bits < largest) {
                    const double next = float8_value(element, static_cast<std::uint8_t>(bits + 1));
                    const int even = bits % 2 == 0 ? bits : bits + 1;
                    CHECK(float8_bits(element, (value + next) / 2) == even);
                    CHECK(float8_bits(element, 0.51 * value + 0.49 * next) == code);
                }
            }
            CHECK(float8_bits(element, 1e6) == largest);
        }
    }
}

}  // namespace
}  // namespace dflash::kernels::test
