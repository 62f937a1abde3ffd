// SPDX-License-Identifier: Apache-2.0
// Backward of RMSNorm over rows of H, in fp32 inside: with xh = x r and g = dy w,
//   dx (+)= r (g - xh mean(g xh)),   dw of this block = sum over its rows of dy xh.
// Constants of the instance besides those of rms_norm_rows.cuh:
//   X_FLOAT, DY_FLOAT, DX_FLOAT  whether these are fp32; otherwise bf16
//   ADD                          whether dx is added to what is there
//   STAGES                       rows in shared memory
//
// Blocks stay: each walks over every P-th row (P blocks of the grid) and keeps dw in registers, so
// the bits of dw depend on P and on the number of rows, and on nothing else. Partial sums are added
// by norm_weight_gradient. Rows come by asynchronous copies, STAGES - 1 rows ahead, because
// registers have no room for them; a stage is the x and dy of a row in shared memory. Bytes per
// element: dy + x + dx (twice with ADD) + optional outputs; about 12 operations.
//
// Tried on an H200 (8192 rows of 4096, fp32 dy, adds, rounded copy, 537 MB, with the sum of
// partials): 512 threads with 8 elements each, one block and 2 stages 136.9 us, 1 stage 157.7, 3
// stages 136.8, two blocks 143.0; 256 threads with 16 elements, one block 139.5, two 147.5; 1024
// threads 140.0. The next row in registers instead of shared memory spills.
#include "rms_norm_arguments.cuh"
#include "rms_norm_rows.cuh"

namespace dflash::kernels {
namespace {

using X = ElementOf<X_FLOAT != 0>::Type;
using Dy = ElementOf<DY_FLOAT != 0>::Type;
using Dx = ElementOf<DX_FLOAT != 0>::Type;
using Bf16Vector = Vector<BFloat16, kElements>;
constexpr bool kAdd = ADD != 0;
static_assert(kElements == (X_FLOAT || DY_FLOAT || DX_FLOAT ? 4 : 8));

constexpr int kStages = STAGES;

/// Rows on their way or in use. A lane reads only what it has copied itself, so that no barrier is
/// needed; its vectors beyond the end of the row are zeros.
struct Stage {
    Vector<X, kElements> x[kVectors][DFLASH_THREADS];
    Vector<Dy, kElements> dy[kVectors][DFLASH_THREADS];
};

static_assert(kStages * sizeof(Stage) == DFLASH_DYNAMIC_SHARED_BYTES);

__device__ __forceinline__ void clear_missing_vectors(Stage* stages) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        if (!has_vector(i)) {
            for (int s = 0; s < kStages; ++s) {
                stages[s].x[i][threadIdx.x] = {};
                stages[s].dy[i][threadIdx.x] = {};
            }
        }
    }
}

/// Starts the copies of a row, if there is one.
__device__ __forceinline__ void copy_row(Stage& stage,
                                         const RmsNormBackwardArguments& arguments,
                                         Offset row) {
    if (row < arguments.num_rows) {
        const X* const x_H = static_cast<const X*>(arguments.x_RH) + row * arguments.x_stride;
        const Dy* const dy_H = static_cast<const Dy*>(arguments.dy_RH) + row * arguments.dy_stride;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            if (has_vector(i)) {
                copy_async(stage.x[i][threadIdx.x], x_H + column_of(i));
                copy_async(stage.dy[i][threadIdx.x], dy_H + column_of(i));
            }
        }
    }
    end_copies();
}

/// Sums of the block's rows, in the order of its warps.
__device__ __forceinline__ void store_partials(float* partials_H,
                                               const float (&dweight)[kVectors][kElements]) {
    if constexpr (kRowsAtOnce == 1) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
#pragma unroll
            for (int e = 0; e < kElements; e += 4) {
                const float four[4] = {
                    dweight[i][e], dweight[i][e + 1], dweight[i][e + 2], dweight[i][e + 3]};
                if (has_vector(i)) {
                    store(partials_H + column_of(i) + e, rounded<float>(four));
                }
            }
        }
    } else {
        __shared__ float sums[kRowsAtOnce][kHidden];
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
                if (has_vector(i)) {
                    sums[row_of_block()][column_of(i) + e] = dweight[i][e];
                }
            }
        }
        __syncthreads();
        for (int column = static_cast<int>(threadIdx.x); column < kHidden;
             column += DFLASH_THREADS) {
            float total = 0;
            for (int row = 0; row < kRowsAtOnce; ++row) {
                total += sums[row][column];
            }
            partials_H[column] = total;
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    rms_norm_backward(const __grid_constant__ RmsNormBackwardArguments arguments) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float parts[2][kWarps];
    Stage* const stages = reinterpret_cast<Stage*>(shared);
    Bf16Vector weight[kVectors] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        if (has_vector(i)) {
            weight[i] = load_shared_input<kElements>(
                static_cast<const BFloat16*>(arguments.weight_H) + column_of(i));
        }
    }
    float dweight[kVectors][kElements] = {};

    const Offset step = static_cast<Offset>(gridDim.x) * kRowsAtOnce;
    Offset row = static_cast<Offset>(blockIdx.x) * kRowsAtOnce + row_of_block();
    clear_missing_vectors(stages);
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
        copy_row(stages[s], arguments, row + s * step);
    }
    float next_inverse_rms = row < arguments.num_rows ? arguments.inverse_rms_R[row] : 0;
    int turn = 0;
    for (int s = 0; row < arguments.num_rows; row += step) {
        Stage& stage = stages[s];
        const float inverse_rms = next_inverse_rms;
        if (row + step < arguments.num_rows) {
            next_inverse_rms = arguments.inverse_rms_R[row + step];
        }
        wait_for_copies<kStages - 1>();
        float product = 0;  // of g and xh
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const Vector<X, kElements> x = stage.x[i][threadIdx.x];
            const Vector<Dy, kElements> dy = stage.dy[i][threadIdx.x];
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
                const float scaled = element(dy, e) * (element(x, e) * inverse_rms);
                dweight[i][e] += scaled;
                product = fmaf(scaled, element(weight[i], e), product);
            }
        }
        Dx* const dx_H = static_cast<Dx*>(arguments.dx_RH) + row * arguments.dx_stride;
        Vector<Dx, kElements> before[kVectors] = {};
        if constexpr (kAdd) {
#pragma unroll
            for (int i = 0; i < kVectors; ++i) {
                if (has_vector(i)) {
                    before[i] = load_once<kElements>(static_cast<const Dx*>(dx_H) + column_of(i));
                }
            }
        }
        const float mean = row_sum(product, parts[turn]) * (1.0f / kHidden);
        turn ^= 1;
        forget_memory();

#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const Vector<X, kElements> x = stage.x[i][threadIdx.x];
            const Vector<Dy, kElements> dy = stage.dy[i][threadIdx.x];
            float dx[kElements];
            float y[kElements];
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
                const float normed = element(x, e) * inverse_rms;
                const float g = element(dy, e) * element(weight[i], e);
                dx[e] = fmaf(fmaf(-normed, mean, g), inverse_rms, element(before[i], e));
                y[e] = normed * element(weight[i], e);
            }
            if (has_vector(i)) {
                store(dx_H + column_of(i), rounded<Dx>(dx));
                if (arguments.dx_rounded_RH != nullptr) {
                    store(static_cast<BFloat16*>(arguments.dx_rounded_RH) +
                              row * arguments.dx_rounded_stride + column_of(i),
                          rounded<BFloat16>(dx));
                }
                if (arguments.y_RH != nullptr) {
                    store(static_cast<BFloat16*>(arguments.y_RH) + row * arguments.y_stride +
                              column_of(i),
                          rounded<BFloat16>(y));
                }
            }
        }
        copy_row(stage, arguments, row + kStages * step);
        s = s + 1 == kStages ? 0 : s + 1;
    }
    store_partials(arguments.partials_PH + static_cast<Offset>(blockIdx.x) * kHidden, dweight);
}

}  // namespace dflash::kernels
