// SPDX-License-Identifier: Apache-2.0
// How a block is laid over rows, the same for all kernels of RMSNorm. Constants of the instance:
//   HIDDEN  H, a multiple of 8
//   VECTOR  elements of a vector: 8 where all rows are bf16, 4 (8 bytes of bf16, 16 of fp32) where
//           some are fp32
//   WARPS   warps of one row; a block has one row of several warps, or several rows of one warp
#pragma once

#include "row_vectors.cuh"

namespace dflash::kernels {

constexpr int kHidden = HIDDEN;
constexpr int kElements = VECTOR;
constexpr int kWarps = WARPS;
constexpr int kLanes = kWarps * kWarpSize;
constexpr int kRowsAtOnce = DFLASH_THREADS / kLanes;
constexpr int kRowVectors = kHidden / kElements;
constexpr int kVectors = ceil_div(kRowVectors, kLanes);  // of a lane
static_assert(DFLASH_THREADS % kLanes == 0 && kHidden % kElements == 0);
static_assert(kWarps == 1 || kRowsAtOnce == 1, "a barrier of the block is one of the row");

/// Place of a thread: which of the block's rows, and which lane of it.
__device__ __forceinline__ int row_of_block() {
    return static_cast<int>(threadIdx.x) / kLanes;
}

__device__ __forceinline__ int lane_of_row() {
    return static_cast<int>(threadIdx.x) % kLanes;
}

/// Whether the lane has a vector i; the last ones may lie beyond the row.
__device__ __forceinline__ bool has_vector(int i) {
    return (i + 1) * kLanes <= kRowVectors || lane_of_row() + i * kLanes < kRowVectors;
}

/// First element of the lane's vector i.
__device__ __forceinline__ int column_of(int i) {
    return (lane_of_row() + i * kLanes) * kElements;
}

/// Sum over the lanes of a row, the same bits in all of them. `parts` is shared memory that no
/// thread still reads from an earlier sum; two in turns will do.
__device__ __forceinline__ float row_sum(float value, float (&parts)[kWarps]) {
    value = lane_sum<kWarpSize>(value);
    if constexpr (kWarps > 1) {
        if (threadIdx.x % kWarpSize == 0) {
            parts[threadIdx.x / kWarpSize] = value;
        }
        __syncthreads();
        value = 0;
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) {
            value += parts[warp];
        }
    }
    return value;
}

}  // namespace dflash::kernels
