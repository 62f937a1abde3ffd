// SPDX-License-Identifier: Apache-2.0
// How lanes share a head, the same for all kernels of the per-head norm and rotation. Constants of
// the instance:
//   HEAD_DIM  D: 32, 64, 128 or 256
//   ROTARY    columns that turn, 2 F <= D: pair i is (i, i + F), the rest stays as it is
//   VECTOR    elements of a vector: 8, or 4 where a tensor is fp32
//   STAGES    turns of a warp in shared memory, on their way or in use
//
// A unit is a head of a row, unit = row * N + head. It is shared by D / (2 VECTOR) lanes; each
// has two vectors that turn into each other, so that no lane needs another's elements. A warp walks
// over consecutive units, several at a turn, so that cos and sin of a row are loaded once for many
// heads.
#pragma once

#include "row_vectors.cuh"

namespace dflash::kernels {

constexpr int kDim = HEAD_DIM;
constexpr int kElements = VECTOR;
constexpr int kPairs = ROTARY / 2;              // F
constexpr int kLanes = kDim / (2 * kElements);  // of a unit
constexpr int kUnits = kWarpSize / kLanes;      // of a warp at a turn
constexpr int kWarps = DFLASH_THREADS / kWarpSize;
constexpr int kStages = STAGES;
static_assert(kLanes >= 1 && kLanes <= kWarpSize && (kLanes & (kLanes - 1)) == 0);
static_assert(kPairs % kElements == 0 && ROTARY <= kDim);
static_assert((kDim - ROTARY) % (2 * kElements) == 0);

/// The units of this warp: whole turns, shared out evenly over all warps of the grid.
struct WarpUnits {
    int begin;
    int end;

    __device__ __forceinline__ explicit WarpUnits(int num_units) {
        const Offset turns = (static_cast<Offset>(num_units) + kUnits - 1) / kUnits;
        const Offset warps = static_cast<Offset>(gridDim.x) * kWarps;
        const Offset warp = static_cast<Offset>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
        begin = static_cast<int>(turns * warp / warps) * kUnits;
        end = min(static_cast<int>(turns * (warp + 1) / warps) * kUnits, num_units);
    }
};

/// Which unit of a turn is the lane's.
__device__ __forceinline__ int unit_of_lane() {
    return static_cast<int>(threadIdx.x) % kWarpSize / kLanes;
}

/// Where a unit lies.
struct UnitPlace {
    Offset row;
    int column;  // first one of the head

    __device__ __forceinline__ UnitPlace(int unit, int num_heads) {
        const unsigned quotient = static_cast<unsigned>(unit) / static_cast<unsigned>(num_heads);
        row = quotient;
        column = (unit - static_cast<int>(quotient) * num_heads) * kDim;
    }
};

/// The two vectors of a lane.
struct LanePlace {
    int first;   // column of its first vector
    int second;  // and of its second
    bool turns;

    __device__ __forceinline__ LanePlace() {
        const int lane = static_cast<int>(threadIdx.x) % kLanes;
        const int column = lane * kElements;
        turns = ROTARY == kDim || column < kPairs;
        first = turns ? column : ROTARY + 2 * (column - kPairs);
        second = turns ? column + kPairs : first + kElements;
    }
};

/// cos and sin of a lane's pairs in one row.
class Angles {
  public:
    __device__ __forceinline__
    Angles(const float* cos_RF, const float* sin_RF, Offset stride, const LanePlace& place)
        : cos_RF_(cos_RF + place.first), sin_RF_(sin_RF + place.first), stride_(stride) {
        if (!place.turns) {  // the angle is 0 in all rows
            cos_RF_ = nullptr;
            float ones[kElements];
            float zeros[kElements];
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
                ones[e] = 1;
                zeros[e] = 0;
            }
            cos_ = rounded<float>(ones);
            sin_ = rounded<float>(zeros);
        }
    }

    /// Loads those of a row, unless they are there.
    __device__ __forceinline__ void go_to(Offset row) {
        if (row != row_ && (ROTARY == kDim || cos_RF_ != nullptr)) {
            cos_ = load_shared_input<kElements>(cos_RF_ + row * stride_);
            sin_ = load_shared_input<kElements>(sin_RF_ + row * stride_);
            row_ = row;
        }
    }

    __device__ __forceinline__ float cos(int i) const {
        return element(cos_, i);
    }

    __device__ __forceinline__ float sin(int i) const {
        return element(sin_, i);
    }

  private:
    const float* cos_RF_;
    const float* sin_RF_;
    Offset stride_;
    Offset row_ = -1;
    Vector<float, kElements> cos_;
    Vector<float, kElements> sin_;
};

}  // namespace dflash::kernels
