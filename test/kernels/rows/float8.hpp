// SPDX-License-Identifier: Apache-2.0
// 8-bit numbers on the host, from their definition (OCP 8-bit Floating Point Specification,
// revision 1.0): a table of all of them, and the nearest one.
#pragma once

#include <dflash/kernels/row_tensor.hpp>

#include <cstdint>

namespace dflash::kernels::test {

/// The number that the bits stand for; NaN for those that are none.
double float8_value(Element element, std::uint8_t bits);

/// Bits of the nearest number, ties to even; the largest number for what is beyond it.
std::uint8_t float8_bits(Element element, double x);

}  // namespace dflash::kernels::test
