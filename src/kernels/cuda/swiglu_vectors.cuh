// SPDX-License-Identifier: Apache-2.0
// How the vectors of a matrix are shared out, and the sigmoid: the same for both kernels of SwiGLU.
// Constants of the instance:
//   VECTORS  vectors of 8 elements to a lane, all loaded before the first is computed
//
// Tried on an H200 (8192 rows of 12288): 1, 2 and 4 vectors 148.3, 157.4 and 158.3 us forward, 1
// and 2 vectors 296.8 and 309.0 us backward with y; blocks of 128 and 256 threads are alike, 512
// are 4 % slower.
#pragma once

#include "row_vectors.cuh"

namespace dflash::kernels {

constexpr int kElements = 8;
constexpr int kVectors = VECTORS;

using Bf16Vector = Vector<BFloat16, kElements>;

/// The lane's vectors: vector i of a block's stretch of kVectors DFLASH_THREADS vectors, counted
/// row by row.
class LaneVectors {
  public:
    __device__ __forceinline__ LaneVectors(Offset num_rows, int inner)
        : num_rows_(num_rows), row_vectors_(static_cast<unsigned>(inner / kElements)) {
        const Offset first = static_cast<Offset>(blockIdx.x) * (kVectors * DFLASH_THREADS);
        first_row_ = first / row_vectors_;
        first_column_ = static_cast<unsigned>(first - first_row_ * row_vectors_);
    }

    /// Finds row and first element of vector i; false beyond the last row.
    __device__ __forceinline__ bool find(int i, Offset& row, int& column) const {
        const unsigned vector =
            first_column_ + threadIdx.x + static_cast<unsigned>(i) * DFLASH_THREADS;
        const unsigned rows = vector / row_vectors_;
        row = first_row_ + rows;
        column = static_cast<int>(vector - rows * row_vectors_) * kElements;
        return row < num_rows_;
    }

  private:
    Offset num_rows_;
    Offset first_row_;
    unsigned row_vectors_;
    unsigned first_column_;
};

const __device__ __forceinline__ BFloat16* at(const void* data,
                                              Offset row,
                                              Offset stride,
                                              int column) {
    return static_cast<const BFloat16*>(data) + row * stride + column;
}

__device__ __forceinline__ BFloat16* at(void* data, Offset row, Offset stride, int column) {
    return static_cast<BFloat16*>(data) + row * stride + column;
}

/// 1 / (1 + e^-x), to about 1e-6 of its value for |x| < 10 and 1e-5 elsewhere; 0 below -87, where
/// it is less than the smallest normal number.
__device__ __forceinline__ float sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

}  // namespace dflash::kernels
