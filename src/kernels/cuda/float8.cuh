// SPDX-License-Identifier: Apache-2.0
// Values as 8-bit floating-point numbers: E4M3 and E5M2 of the OCP 8-bit Floating Point
// Specification (OFP8), revision 1.0. Rounded to nearest even; what is too large becomes the
// largest number, NaN stays NaN. From compute capability 8.9 on.
#pragma once

#include "row_vectors.cuh"

namespace dflash::kernels {

/// An 8-bit number in memory.
struct Float8 {
    unsigned char bits;
};

/// Two numbers, the first in the lower byte.
__device__ __forceinline__ Word e4m3_pair(float first, float second) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    return pair;
}

__device__ __forceinline__ Word e5m2_pair(float first, float second) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    return pair;
}

/// Four numbers at a multiple of 4 bytes.
__device__ __forceinline__ void store_four(Float8* target, Word four) {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(target), "r"(four) : "memory");
}

__device__ __forceinline__ void store_one(Float8* target, Word number) {
    asm volatile("st.global.b8 [%0], %1;" ::"l"(target), "r"(number) : "memory");
}

}  // namespace dflash::kernels
