// SPDX-License-Identifier: Apache-2.0
// RMSNorm: y = x r w with r = (mean(x^2) + eps)^(-1/2) over rows of H, in fp32 inside.
// Constants of the instance besides those of rms_norm_rows.cuh:
//   X_FLOAT   whether x is fp32; otherwise bf16
//   RESIDUAL  whether residual += x comes first, rounded to bf16; its norm is taken
//
// One row to WARPS warps; all of it is in registers between the two uses. Bytes per element: 4
// (bf16 x), 6 (fp32 x), 8 (with the residual); about 6 operations. No atomics: the same bits every
// time.
//
// Tried on an H200 (8192 rows of 4096, 134 MB): 4 warps a row 37.9 us with 6 or 8 blocks, 8 warps
// 37.6, 2 warps 38.6, 16 warps 48.8.
#include "rms_norm_arguments.cuh"
#include "rms_norm_rows.cuh"

namespace dflash::kernels {
namespace {

using X = ElementOf<X_FLOAT != 0>::Type;
constexpr bool kResidual = RESIDUAL != 0;
static_assert(!kResidual || !X_FLOAT);
static_assert(kElements == (X_FLOAT ? 4 : 8));

}  // namespace

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    rms_norm_forward(const __grid_constant__ RmsNormForwardArguments arguments) {
    __shared__ float parts[kWarps];
    const Offset row = static_cast<Offset>(blockIdx.x) * kRowsAtOnce + row_of_block();
    if (row >= arguments.num_rows) {
        return;  // a warp with a row of its own, so no barrier waits for it
    }
    const X* const x_H = static_cast<const X*>(arguments.x_RH) + row * arguments.x_stride;
    const BFloat16* const weight_H = static_cast<const BFloat16*>(arguments.weight_H);
    X* const residual_H = static_cast<X*>(arguments.residual_RH) + row * arguments.residual_stride;

    Vector<X, kElements> x[kVectors] = {};
    Vector<X, kElements> residual[kVectors] = {};
    Vector<BFloat16, kElements> weight[kVectors] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        if (has_vector(i)) {
            x[i] = load_once<kElements>(x_H + column_of(i));
            if constexpr (kResidual) {
                residual[i] =
                    load_once<kElements>(static_cast<const X*>(residual_H) + column_of(i));
            }
            weight[i] = load_shared_input<kElements>(weight_H + column_of(i));
        }
    }
    if constexpr (kResidual) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            float sum[kElements];
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
                sum[e] = element(residual[i], e) + element(x[i], e);
            }
            assign(x[i], sum);
            if (has_vector(i)) {
                store(residual_H + column_of(i), x[i]);
            }
        }
    }

    float inverse_rms;
    if (arguments.known_R != nullptr) {
        inverse_rms = arguments.known_R[row];
    } else {
        float squares = 0;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
                squares = fmaf(element(x[i], e), element(x[i], e), squares);
            }
        }
        inverse_rms = __frsqrt_rn(row_sum(squares, parts) * (1.0f / kHidden) + arguments.eps);
    }
    if (arguments.inverse_rms_R != nullptr && lane_of_row() == 0) {
        arguments.inverse_rms_R[row] = inverse_rms;
    }
    BFloat16* const y_H = static_cast<BFloat16*>(arguments.y_RH) + row * arguments.y_stride;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        float y[kElements];
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            y[e] = element(x[i], e) * inverse_rms * element(weight[i], e);
        }
        if (has_vector(i)) {
            store(y_H + column_of(i), rounded<BFloat16>(y));
        }
    }
}

}  // namespace dflash::kernels
