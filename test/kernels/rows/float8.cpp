// SPDX-License-Identifier: Apache-2.0
#include "float8.hpp"

#include <dflash/core/check.hpp>

#include <cmath>
#include <limits>

namespace dflash::kernels::test {

double float8_value(Element element, std::uint8_t bits) {
    DFLASH_CHECK(is_float8(element), "a number in {}", name_of(element));
    const bool is_e4m3 = element == Element::Float8E4M3;
    const int mantissa_bits = is_e4m3 ? 3 : 2;
    const int bias = is_e4m3 ? 7 : 15;
    const int magnitude = bits & 0x7f;
    const int exponent = magnitude >> mantissa_bits;
    const int mantissa = magnitude & ((1 << mantissa_bits) - 1);
    // E4M3 has one NaN of each sign and no infinity, E5M2 both as wider types do.
    if (is_e4m3 ? magnitude == 0x7f : exponent == 31 && mantissa != 0) {
        return std::numeric_limits<double>::quiet_NaN();
    }
    const double sign = (bits & 0x80) != 0 ? -1 : 1;
    if (!is_e4m3 && exponent == 31) {
        return sign * std::numeric_limits<double>::infinity();
    }
    const int unit = 1 << mantissa_bits;
    return exponent == 0 ? sign * std::ldexp(mantissa, 1 - bias - mantissa_bits)
                         : sign * std::ldexp(unit + mantissa, exponent - bias - mantissa_bits);
}

std::uint8_t float8_bits(Element element, double x) {
    const std::uint8_t largest = element == Element::Float8E4M3 ? 0x7e : 0x7b;
    const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
    if (std::isnan(x)) {
        return 0x7f;
    }
    const double magnitude = std::abs(x);
    std::uint8_t below = 0;  // the largest number that is not larger, by bisection
    std::uint8_t above = largest;
    if (magnitude >= float8_value(element, largest)) {
        return sign | largest;
    }
    while (above - below > 1) {
        const auto middle = static_cast<std::uint8_t>((above + below) / 2);
        (float8_value(element, middle) <= magnitude ? below : above) = middle;
    }
    const double down = magnitude - float8_value(element, below);
    const double up = float8_value(element, above) - magnitude;
    const bool take_above = up < down || (up == down && below % 2 == 1);
    return sign | (take_above ? above : below);
}

}  // namespace dflash::kernels::test
