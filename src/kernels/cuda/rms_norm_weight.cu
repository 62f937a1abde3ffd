// SPDX-License-Identifier: Apache-2.0
// The last step of a norm's weight gradient: dw += sum over P of partials [P, H], in fp32 and in a
// fixed order.
//
// A block has 32 columns; its warps take every kWarps-th partial, then their sums are added in the
// order of the warps. Bytes: 4 P H, mostly out of L2, where the backward has just put them.
#include "rms_norm_arguments.cuh"
#include "row_vectors.cuh"

namespace dflash::kernels {
namespace {

constexpr int kWarps = DFLASH_THREADS / kWarpSize;

}  // namespace

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    norm_weight_gradient(const __grid_constant__ WeightGradientArguments arguments) {
    __shared__ float sums[kWarps][kWarpSize];
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int column = static_cast<int>(blockIdx.x) * kWarpSize + lane;
    float sum = 0;
    if (column < arguments.hidden) {
#pragma unroll 8
        for (Offset p = warp; p < arguments.num_partials; p += kWarps) {
            sum += arguments.partials_PH[p * arguments.hidden + column];
        }
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && column < arguments.hidden) {
        float total = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            total += sums[w][lane];
        }
        arguments.dweight_H[column] += total;
    }
}

}  // namespace dflash::kernels
