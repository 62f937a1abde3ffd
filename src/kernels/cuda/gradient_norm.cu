// SPDX-License-Identifier: Apache-2.0
// Sums of squares of a gradient, one for each chunk of it, in fp64 and in a fixed order: squares of
// fp32 numbers cannot overflow there, so a sum is finite if and only if all elements are.
//
// A block has one chunk. Bytes per element: 4; two operations in fp64.
#include "adamw_arguments.cuh"
#include "row_vectors.cuh"

namespace dflash::kernels {
namespace {

constexpr int kWarps = DFLASH_THREADS / kWarpSize;
constexpr int kElements = 4;
constexpr int kUnroll = 4;

__device__ __forceinline__ double square(float x) {
    return static_cast<double>(x) * static_cast<double>(x);
}

__device__ __forceinline__ double warp_sum(double value) {
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(kAllLanes, value, distance);
    }
    return value;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    gradient_norm(const __grid_constant__ GradientNormArguments arguments) {
    __shared__ double sums[kWarps];
    const NormChunk chunk = arguments.chunks[blockIdx.x];
    const Offset end = chunk.begin + chunk.count;
    // Vectors begin at multiples of 16 bytes; a chunk need not.
    const Offset first = min((chunk.begin + kElements - 1) / kElements * kElements, end);
    const Offset last = max(first, end / kElements * kElements);
    double sum = 0;
    Offset at = first + static_cast<Offset>(threadIdx.x) * kElements;
    constexpr Offset kStep = static_cast<Offset>(DFLASH_THREADS) * kElements;
    for (; at + (kUnroll - 1) * kStep < last; at += kUnroll * kStep) {
        Vector<float, kElements> v[kUnroll];
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
            v[i] = load_once<kElements>(arguments.gradient_P + at + i * kStep);
        }
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
                sum += square(element(v[i], e));
            }
        }
    }
    for (; at < last; at += kStep) {
        const Vector<float, kElements> v = load_once<kElements>(arguments.gradient_P + at);
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            sum += square(element(v, e));
        }
    }
    for (Offset i = chunk.begin + threadIdx.x; i < first; i += DFLASH_THREADS) {
        sum += square(arguments.gradient_P[i]);
    }
    for (Offset i = last + threadIdx.x; i < end; i += DFLASH_THREADS) {
        sum += square(arguments.gradient_P[i]);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % kWarpSize == 0) {
        sums[threadIdx.x / kWarpSize] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0;
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) {
            total += sums[warp];
        }
        arguments.squares[blockIdx.x] = total;
    }
}

}  // namespace dflash::kernels
