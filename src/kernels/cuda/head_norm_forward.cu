// SPDX-License-Identifier: Apache-2.0
// Per-head RMSNorm and rotary embedding in one pass: with n = x r w, r = (mean(x^2) + eps)^(-1/2)
// over the head's D elements, rounded to bf16,
//   y[i] = n[i] cos[i] - n[i + F] sin[i],   y[i + F] = n[i + F] cos[i] + n[i] sin[i].
// Constants of the instance besides those of head_norm_lanes.cuh:
//   NORM  0: n = x
//
// The rounding of n is that of an unfused norm (as in transformers' Qwen3 and in serving engines).
// Heads come by asynchronous copies, STAGES turns ahead. Bytes: 4 N D a row, and the row's cos and
// sin, 8 F; about 12 operations per element.
//
// Tried on an H200 (8192 rows of 32 heads of 128, 139 MB): one head of a lane without a walk, loads
// into registers 48.1 us, at 6 blocks of 40 registers 42.4; two and four at a time 44.9 and 50.1;
// this walk with 2 blocks and 2 stages 41.7, 3 stages 42.7, vectors of 4 at 4 blocks 43.1.
#include "head_norm_arguments.cuh"
#include "head_norm_lanes.cuh"

namespace dflash::kernels {
namespace {

using Bf16Vector = Vector<BFloat16, kElements>;
constexpr bool kNorm = NORM != 0;

/// Heads on their way or in use. A lane reads only what it has copied itself, so that no barrier is
/// needed.
struct Stage {
    Bf16Vector x[2][DFLASH_THREADS];
};

static_assert(kStages * sizeof(Stage) == DFLASH_DYNAMIC_SHARED_BYTES);

/// Starts the copies of a unit before `end`.
__device__ __forceinline__ void copy_unit(Stage& stage,
                                          const HeadNormForwardArguments& arguments,
                                          int unit,
                                          int end,
                                          const LanePlace& place) {
    if (unit < end) {
        const UnitPlace at(unit, arguments.num_heads);
        const BFloat16* const x_D =
            static_cast<const BFloat16*>(arguments.x_RND) + at.row * arguments.x_stride + at.column;
        copy_async(stage.x[0][threadIdx.x], x_D + place.first);
        copy_async(stage.x[1][threadIdx.x], x_D + place.second);
    }
    end_copies();
}

/// x r w, rounded.
__device__ __forceinline__ Bf16Vector normed(const Bf16Vector& x,
                                             const Bf16Vector& weight,
                                             float inverse_rms) {
    float n[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
        n[e] = element(x, e) * inverse_rms * element(weight, e);
    }
    return rounded<BFloat16>(n);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    head_norm_forward(const __grid_constant__ HeadNormForwardArguments arguments) {
    extern __shared__ __align__(16) unsigned char shared[];
    Stage* const stages = reinterpret_cast<Stage*>(shared);
    const LanePlace place;
    const WarpUnits units(arguments.num_units);
    int unit = units.begin + unit_of_lane();
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
        copy_unit(stages[s], arguments, unit + s * kUnits, units.end, place);
    }
    Bf16Vector weight[2] = {};
    if constexpr (kNorm) {
        const BFloat16* const weight_D = static_cast<const BFloat16*>(arguments.weight_D);
        weight[0] = load_shared_input<kElements>(weight_D + place.first);
        weight[1] = load_shared_input<kElements>(weight_D + place.second);
    }
    Angles angles(arguments.cos_RF, arguments.sin_RF, arguments.table_stride, place);
    int s = 0;
    for (int turn = units.begin; turn < units.end; turn += kUnits, unit += kUnits) {
        const bool exists = unit < units.end;
        const UnitPlace at(exists ? unit : units.begin, arguments.num_heads);
        angles.go_to(at.row);
        wait_for_copies<kStages - 1>();
        Bf16Vector x[2] = {};
        if (exists) {
            x[0] = stages[s].x[0][threadIdx.x];
            x[1] = stages[s].x[1][threadIdx.x];
        }
        copy_unit(stages[s], arguments, unit + kStages * kUnits, units.end, place);
        s = s + 1 == kStages ? 0 : s + 1;

        if constexpr (kNorm) {
            float squares = 0;
#pragma unroll
            for (int v = 0; v < 2; ++v) {
#pragma unroll
                for (int e = 0; e < kElements; ++e) {
                    squares = fmaf(element(x[v], e), element(x[v], e), squares);
                }
            }
            const float inverse_rms =
                __frsqrt_rn(lane_sum<kLanes>(squares) * (1.0f / kDim) + arguments.eps);
            if (exists && arguments.inverse_rms_RN != nullptr && threadIdx.x % kLanes == 0) {
                arguments.inverse_rms_RN[unit] = inverse_rms;
            }
            x[0] = normed(x[0], weight[0], inverse_rms);
            x[1] = normed(x[1], weight[1], inverse_rms);
        }
        float y[2][kElements];
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            const float a = element(x[0], e);
            const float b = element(x[1], e);
            y[0][e] = fmaf(-b, angles.sin(e), a * angles.cos(e));
            y[1][e] = fmaf(a, angles.sin(e), b * angles.cos(e));
        }
        if (exists) {
            BFloat16* const y_D =
                static_cast<BFloat16*>(arguments.y_RND) + at.row * arguments.y_stride + at.column;
            store(y_D + place.first, rounded<BFloat16>(y[0]));
            store(y_D + place.second, rounded<BFloat16>(y[1]));
        }
    }
}

}  // namespace dflash::kernels
