// SPDX-License-Identifier: Apache-2.0
// Vectors of consecutive elements: bf16 or fp32 in memory, fp32 in registers, and sums over lanes
// in a fixed order. What kernels that only stream over rows have in common.
//
// A warp reads vectors of consecutive lanes from consecutive addresses, 8 or 16 bytes each: all
// bytes of all sectors touched are used.
#pragma once

namespace dflash::kernels {

using Word = unsigned;  // two bf16 or one fp32
using Offset = long long;

constexpr int kWarpSize = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__host__ __device__ constexpr int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}

/// bf16 in memory.
struct BFloat16 {
    unsigned short bits;
};

template <bool kIsFloat>
struct ElementOf {
    using Type = BFloat16;
};

template <>
struct ElementOf<true> {
    using Type = float;
};

/// kCount elements as they lie in memory; aligned to 16 bytes there, or to 8 if it is no longer.
template <typename T, int kCount>
struct alignas(kCount * sizeof(T) < 16 ? 8 : 16) Vector {
    static constexpr int kWords = kCount * static_cast<int>(sizeof(T)) / 4;
    static_assert(kWords == 2 || kWords % 4 == 0);
    Word words[kWords];
};

/// Loads what is read only once: it does not displace in L1 what is read again. The memory may be
/// written later by the same thread.
template <int kCount, typename T>
__device__ __forceinline__ Vector<T, kCount> load_once(const T* source) {
    Vector<T, kCount> v;
    if constexpr (Vector<T, kCount>::kWords == 2) {
        asm volatile("ld.global.L1::no_allocate.v2.b32 {%0, %1}, [%2];"
                     : "=r"(v.words[0]), "=r"(v.words[1])
                     : "l"(source));
    } else {
#pragma unroll
        for (int i = 0; i < v.kWords; i += 4) {
            asm volatile(
                "ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                : "=r"(v.words[i]), "=r"(v.words[i + 1]), "=r"(v.words[i + 2]), "=r"(v.words[i + 3])
                : "l"(source + i * 4 / static_cast<int>(sizeof(T))));
        }
    }
    return v;
}

/// Loads what other warps read as well and nobody writes while the kernel runs.
template <int kCount, typename T>
__device__ __forceinline__ Vector<T, kCount> load_shared_input(const T* source) {
    Vector<T, kCount> v;
    if constexpr (Vector<T, kCount>::kWords == 2) {
        asm("ld.global.nc.v2.b32 {%0, %1}, [%2];"
            : "=r"(v.words[0]), "=r"(v.words[1])
            : "l"(source));
    } else {
#pragma unroll
        for (int i = 0; i < v.kWords; i += 4) {
            asm("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
                : "=r"(v.words[i]), "=r"(v.words[i + 1]), "=r"(v.words[i + 2]), "=r"(v.words[i + 3])
                : "l"(source + i * 4 / static_cast<int>(sizeof(T))));
        }
    }
    return v;
}

/// Starts the copy of a vector into shared memory, where only this thread may read it, after
/// wait_for_copies().
template <typename T, int kCount>
__device__ __forceinline__ void copy_async(Vector<T, kCount>& target, const T* source) {
    const auto address = static_cast<Word>(__cvta_generic_to_shared(target.words));
    if constexpr (Vector<T, kCount>::kWords == 2) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(source)
                     : "memory");
    } else {
        static_assert(Vector<T, kCount>::kWords == 4);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(source)
                     : "memory");
    }
}

/// Ends a group of copies of this thread.
__device__ __forceinline__ void end_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until all but the last kPending groups of this thread have arrived.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Memory is read again afterwards rather than kept in registers.
__device__ __forceinline__ void forget_memory() {
    asm volatile("" ::: "memory");
}

template <int kCount, typename T>
__device__ __forceinline__ void store(T* target, const Vector<T, kCount>& v) {
    if constexpr (Vector<T, kCount>::kWords == 2) {
        asm volatile(
            "st.global.v2.b32 [%0], {%1, %2};" ::"l"(target), "r"(v.words[0]), "r"(v.words[1])
            : "memory");
    } else {
#pragma unroll
        for (int i = 0; i < v.kWords; i += 4) {
            asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(
                             target + i * 4 / static_cast<int>(sizeof(T))),
                         "r"(v.words[i]),
                         "r"(v.words[i + 1]),
                         "r"(v.words[i + 2]),
                         "r"(v.words[i + 3])
                         : "memory");
        }
    }
}

template <int kCount>
__device__ __forceinline__ float element(const Vector<float, kCount>& v, int i) {
    return __uint_as_float(v.words[i]);
}

template <int kCount>
__device__ __forceinline__ float element(const Vector<BFloat16, kCount>& v, int i) {
    return __uint_as_float(i % 2 == 0 ? v.words[i / 2] << 16 : v.words[i / 2] & 0xffff0000u);
}

template <int kCount>
__device__ __forceinline__ void assign(Vector<float, kCount>& v, const float (&values)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        v.words[i] = __float_as_uint(values[i]);
    }
}

/// Rounds to nearest even.
template <int kCount>
__device__ __forceinline__ void assign(Vector<BFloat16, kCount>& v, const float (&values)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
            : "=r"(v.words[i / 2])
            : "f"(values[i + 1]), "f"(values[i]));
    }
}

/// One element, rounded to nearest even.
__device__ __forceinline__ void store_one(BFloat16* target, float value) {
    asm("{\n"
        ".reg .b16 half;\n"
        "cvt.rn.bf16.f32 half, %1;\n"
        "st.global.b16 [%0], half;\n"
        "}" ::"l"(target),
        "f"(value)
        : "memory");
}

/// Values rounded to T, as they will be read again.
template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> rounded(const float (&values)[kCount]) {
    Vector<T, kCount> v;
    assign(v, values);
    return v;
}

/// Sum over groups of kLanes lanes (a power of two), the same bits in all lanes of a group.
template <int kLanes>
__device__ __forceinline__ float lane_sum(float value) {
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(kAllLanes, value, distance);
    }
    return value;
}

}  // namespace dflash::kernels
