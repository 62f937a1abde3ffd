// SPDX-License-Identifier: Apache-2.0
// Rows of bf16 as 8-bit numbers (E4M3) with a scale each: x is about scale y, with the largest
// magnitude of the row at 448, the largest that there is. A block has one row.
//
// Constants of the instance:
//   KEPT  vectors of 8 elements that a thread keeps in registers between the search for the largest
//         magnitude and the conversion; what is beyond them is read again, from the L2 cache as far
//         as it holds it
//
// Bytes of an element: 2 read, 1 written.
#include "float8.cuh"
#include "quantize_rows_arguments.cuh"

namespace dflash::kernels {
namespace {

constexpr int kThreads = DFLASH_THREADS;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kKept = KEPT;
constexpr int kElements = 8;
constexpr float kLargestNumber = 448.0f;

// Rows without a larger magnitude count as zeros: the factor could not be formed in fp32.
constexpr float kSmallest = 0x1p-100f;

using Input = Vector<BFloat16, kElements>;
using Output = Vector<Float8, kElements>;

/// The larger of `largest` and the magnitudes of a vector, as bits of bf16: they are ordered as the
/// numbers are, with infinity and NaN above all.
__device__ __forceinline__ Word larger(Word largest, const Input& v) {
#pragma unroll
    for (const Word word : v.words) {
        largest = max(largest, max(word & 0x7fffu, (word >> 16) & 0x7fffu));
    }
    return largest;
}

/// Over the block, the same in all threads.
__device__ __forceinline__ Word largest_of_block(Word largest, Word (&of_warps)[kWarps]) {
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
        largest = max(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    }
    if (threadIdx.x % kWarpSize == 0) {
        of_warps[threadIdx.x / kWarpSize] = largest;
    }
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
        largest = max(largest, of_warps[warp]);
    }
    return largest;
}

__device__ __forceinline__ Output converted(const Input& v, float factor) {
    Output result;
#pragma unroll
    for (int i = 0; i < Output::kWords; ++i) {
        result.words[i] = e4m3_pair(element(v, 4 * i) * factor, element(v, 4 * i + 1) * factor) |
                          e4m3_pair(element(v, 4 * i + 2) * factor, element(v, 4 * i + 3) * factor)
                              << 16;
    }
    return result;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    quantize_rows(const __grid_constant__ QuantizeRowsArguments arguments) {
    __shared__ Word of_warps[kWarps];
    const Offset r = blockIdx.x;
    const BFloat16* const x = static_cast<const BFloat16*>(arguments.x_RC) + r * arguments.x_stride;
    Float8* const y = static_cast<Float8*>(arguments.y_RC) + r * arguments.y_stride;
    const int num_vectors = arguments.columns / kElements;
    const int lane = static_cast<int>(threadIdx.x);
    const auto load = [&](int v) {
        return load_shared_input<kElements>(x + static_cast<Offset>(v) * kElements);
    };

    Input kept[kKept];
    Word largest = 0;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
        const int v = i * kThreads + lane;
        if (v < num_vectors) {
            kept[i] = load(v);
            largest = larger(largest, kept[i]);
        }
    }
    for (int v = kKept * kThreads + lane; v < num_vectors; v += kThreads) {
        largest = larger(largest, load(v));
    }
    largest = largest_of_block(largest, of_warps);

    const float magnitude = __uint_as_float(largest << 16);
    const bool is_zero = magnitude < kSmallest;
    const float factor = is_zero ? 0.0f : kLargestNumber / magnitude;
    if (lane == 0) {
        arguments.scale_R[r] = is_zero ? 0.0f : magnitude / kLargestNumber;
    }
    const auto put = [&](int v, const Input& from) {
        store(y + static_cast<Offset>(v) * kElements, converted(from, factor));
    };
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
        const int v = i * kThreads + lane;
        if (v < num_vectors) {
            put(v, kept[i]);
        }
    }
    for (int v = kKept * kThreads + lane; v < num_vectors; v += kThreads) {
        put(v, load(v));
    }
}

}  // namespace dflash::kernels
