// SPDX-License-Identifier: Apache-2.0
// Device matrices as the row-wise kernels take them.
#pragma once

#include <cstdint>

namespace dflash::kernels {

/// Type of the elements of a device tensor. The types of 8 bits are those of the OCP 8-bit Floating
/// Point Specification (OFP8), revision 1.0: E4M3 reaches 448, E5M2 57344.
enum class Element { BFloat16, Float32, Float8E4M3, Float8E5M2 };

/// Bytes of an element.
constexpr std::int64_t size_of(Element element) {
    return element == Element::Float32 ? 4 : element == Element::BFloat16 ? 2 : 1;
}

/// "bf16", "fp32", "e4m3", "e5m2".
constexpr const char* name_of(Element element) {
    switch (element) {
        case Element::BFloat16:
            return "bf16";
        case Element::Float32:
            return "fp32";
        case Element::Float8E4M3:
            return "e4m3";
        case Element::Float8E5M2:
            return "e5m2";
    }
    return "";
}

constexpr bool is_float8(Element element) {
    return element == Element::Float8E4M3 || element == Element::Float8E5M2;
}

/// Rows on the device of the launch: the elements of a row are contiguous, `row_stride` elements
/// lie between the starts of two rows, and what is between the end of a row and the next is neither
/// read nor written. `data` and the stride are multiples of 16 bytes.
struct RowTensor {
    void* data = nullptr;  ///< null: none, where a tensor is optional
    std::int64_t row_stride = 0;
    Element element = Element::BFloat16;
};

/// Device memory for the sums of a norm's weight gradient, one set of the norm's size for each
/// block of the backward: count x size floats, 16-byte aligned, used between the start of a launch
/// and its end. The order of sums, and so the bits of the gradient, depend on `count`: give the
/// same one every time.
struct WeightPartials {
    float* data = nullptr;
    std::int64_t count = 0;
};

}  // namespace dflash::kernels
