// SPDX-License-Identifier: Apache-2.0
// Backward of the per-head norm and rotary embedding, in fp32 inside: dn is dy turned back by the
// same angles; with xh = x r and g = dn w,
//   dx = r (g - xh mean(g xh)) over the head,   dw of this block = sum over its heads of dn xh.
// Constants of the instance besides those of head_norm_lanes.cuh:
//   DY_FLOAT  whether dy is fp32; otherwise bf16
//
// Warps walk over their heads and keep dw in registers, so the bits of dw depend on P (blocks of
// the grid), R and N, and on nothing else. Partial sums are added by norm_weight_gradient. Heads
// come by asynchronous copies, STAGES turns ahead. Bytes: 6 N D a row (8 N D for fp32 dy), and cos,
// sin and r; about 25 operations per element.
//
// Tried on an H200 (8192 rows of 32 heads of 128, with the sum of partials): groups of heads far
// apart, so that cos and sin are loaded for every head, 61.6 us (bf16 dy, vectors of 8) and 72.8
// (fp32 dy, 4 blocks); this walk with 3 blocks and 2 stages 62.0 and 77.1, 3 stages 62.6 and 77.8.
#include "head_norm_arguments.cuh"
#include "head_norm_lanes.cuh"

namespace dflash::kernels {
namespace {

using Bf16Vector = Vector<BFloat16, kElements>;
using Dy = ElementOf<DY_FLOAT != 0>::Type;
static_assert(!DY_FLOAT || kElements == 4);

/// Heads on their way or in use. A lane reads only what it has copied itself, so that no barrier is
/// needed.
struct Stage {
    Bf16Vector x[2][DFLASH_THREADS];
    Vector<Dy, kElements> dy[2][DFLASH_THREADS];
};

static_assert(kStages * sizeof(Stage) == DFLASH_DYNAMIC_SHARED_BYTES);

/// Starts the copies of a unit before `end`.
__device__ __forceinline__ void copy_unit(Stage& stage,
                                          const HeadNormBackwardArguments& arguments,
                                          int unit,
                                          int end,
                                          const LanePlace& place) {
    if (unit < end) {
        const UnitPlace at(unit, arguments.num_heads);
        const BFloat16* const x_D =
            static_cast<const BFloat16*>(arguments.x_RND) + at.row * arguments.x_stride + at.column;
        const Dy* const dy_D =
            static_cast<const Dy*>(arguments.dy_RND) + at.row * arguments.dy_stride + at.column;
        copy_async(stage.x[0][threadIdx.x], x_D + place.first);
        copy_async(stage.x[1][threadIdx.x], x_D + place.second);
        copy_async(stage.dy[0][threadIdx.x], dy_D + place.first);
        copy_async(stage.dy[1][threadIdx.x], dy_D + place.second);
    }
    end_copies();
}

/// Adds the lanes' sums that belong to one column: over the units of a warp, then over the warps in
/// their order.
__device__ __forceinline__ void store_partials(float* partials_D,
                                               float (&dweight)[2][kElements],
                                               const LanePlace& place) {
    __shared__ float sums[kWarps][kDim];
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
#pragma unroll
    for (int v = 0; v < 2; ++v) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            float sum = dweight[v][e];
#pragma unroll
            for (int distance = kLanes; distance < kWarpSize; distance *= 2) {
                sum += __shfl_xor_sync(kAllLanes, sum, distance);
            }
            if (threadIdx.x % kWarpSize < kLanes) {
                sums[warp][(v == 0 ? place.first : place.second) + e] = sum;
            }
        }
    }
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < kDim; column += DFLASH_THREADS) {
        float total = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            total += sums[w][column];
        }
        partials_D[column] = total;
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    head_norm_backward(const __grid_constant__ HeadNormBackwardArguments arguments) {
    extern __shared__ __align__(16) unsigned char shared[];
    Stage* const stages = reinterpret_cast<Stage*>(shared);
    const LanePlace place;
    const BFloat16* const weight_D = static_cast<const BFloat16*>(arguments.weight_D);
    const Bf16Vector weight[2] = {load_shared_input<kElements>(weight_D + place.first),
                                  load_shared_input<kElements>(weight_D + place.second)};
    float dweight[2][kElements] = {};

    const WarpUnits units(arguments.num_units);
    int unit = units.begin + unit_of_lane();
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
        copy_unit(stages[s], arguments, unit + s * kUnits, units.end, place);
    }
    Angles angles(arguments.cos_RF, arguments.sin_RF, arguments.table_stride, place);
    float next_inverse_rms = unit < units.end ? arguments.inverse_rms_RN[unit] : 0;
    int s = 0;
    // All lanes of a warp take the same number of turns, because sums over lanes need whole warps;
    // what lies beyond the last unit is zeros.
    for (int turn = units.begin; turn < units.end; turn += kUnits, unit += kUnits) {
        const bool exists = unit < units.end;
        const UnitPlace at(exists ? unit : units.begin, arguments.num_heads);
        angles.go_to(at.row);
        const float inverse_rms = next_inverse_rms;
        if (unit + kUnits < units.end) {
            next_inverse_rms = arguments.inverse_rms_RN[unit + kUnits];
        }
        wait_for_copies<kStages - 1>();
        Bf16Vector x[2] = {};
        Vector<Dy, kElements> dy[2] = {};
        if (exists) {
#pragma unroll
            for (int v = 0; v < 2; ++v) {
                x[v] = stages[s].x[v][threadIdx.x];
                dy[v] = stages[s].dy[v][threadIdx.x];
            }
        }
        copy_unit(stages[s], arguments, unit + kStages * kUnits, units.end, place);
        s = s + 1 == kStages ? 0 : s + 1;
        float g[2][kElements];
        float product = 0;  // of g and xh
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            const float cos = angles.cos(e);
            const float sin = angles.sin(e);
            const float a = element(dy[0], e);
            const float b = element(dy[1], e);
            g[0][e] = fmaf(b, sin, a * cos);
            g[1][e] = fmaf(-a, sin, b * cos);
        }
#pragma unroll
        for (int v = 0; v < 2; ++v) {
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
                const float normed = element(x[v], e) * inverse_rms;
                dweight[v][e] = fmaf(g[v][e], normed, dweight[v][e]);
                g[v][e] *= element(weight[v], e);
                product = fmaf(g[v][e], normed, product);
            }
        }
        const float mean = lane_sum<kLanes>(product) * (1.0f / kDim);
        if (exists) {
            BFloat16* const dx_D =
                static_cast<BFloat16*>(arguments.dx_RND) + at.row * arguments.dx_stride + at.column;
#pragma unroll
            for (int v = 0; v < 2; ++v) {
                float dx[kElements];
#pragma unroll
                for (int e = 0; e < kElements; ++e) {
                    const float normed = element(x[v], e) * inverse_rms;
                    dx[e] = fmaf(-normed, mean, g[v][e]) * inverse_rms;
                }
                store(dx_D + (v == 0 ? place.first : place.second), rounded<BFloat16>(dx));
            }
        }
    }
    store_partials(arguments.partials_PD + static_cast<Offset>(blockIdx.x) * kDim, dweight, place);
}

}  // namespace dflash::kernels
