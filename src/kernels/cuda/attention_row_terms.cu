// SPDX-License-Identifier: Apache-2.0
// What the backward needs of each row: log-sum-exp and delta = sum over D of o dO, both negated,
// and what the row may see. Bound by reading o, its rest and dO once: 6 D bytes a row.
//
// D / 8 lanes share a row; a warp takes ROWS_PER_LANE times as many rows as fit into it at once, so
// that their reads are under way together.
#include "attention_rows.cuh"

namespace dflash::kernels {
namespace {

constexpr int kLanesPerRow = kDim / 8;
constexpr int kRowsAtOnce = kThreads / kLanesPerRow;
constexpr int kUnroll = ROWS_PER_LANE;

__device__ __forceinline__ float dot(const uint4& a, const uint4& b) {
    const Word x[4] = {a.x, a.y, a.z, a.w};
    const Word y[4] = {b.x, b.y, b.z, b.w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        sum = fmaf(low_half(x[i]), low_half(y[i]), sum);
        sum = fmaf(high_half(x[i]), high_half(y[i]), sum);
    }
    return sum;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    attention_row_terms(const __grid_constant__ RowTermsArguments arguments) {
    // Rows in the order of memory; their number fits into 32 bits, with which division is cheap.
    const unsigned query_heads = static_cast<unsigned>(arguments.num_key_heads * kGroup);
    const unsigned rows = static_cast<unsigned>(arguments.num_tokens) * query_heads;
    const unsigned first = blockIdx.x * (kRowsAtOnce * kUnroll) + threadIdx.x / kLanesPerRow;
    const int column = static_cast<int>(threadIdx.x) % kLanesPerRow * 8;
    uint4 o[kUnroll];
    uint4 o_rest[kUnroll];
    uint4 d_o[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
        const unsigned row = first + i * kRowsAtOnce;
        o[i] = o_rest[i] = d_o[i] = make_uint4(0, 0, 0, 0);
        if (row < rows) {
            const Offset token = row / query_heads;
            const int head = static_cast<int>(row % query_heads);
            o[i] = *reinterpret_cast<const uint4*>(head_of(arguments.o, head) +
                                                   token * arguments.o.token_stride + column);
            o_rest[i] = *reinterpret_cast<const uint4*>(
                head_of(arguments.o_rest, head) + token * arguments.o_rest.token_stride + column);
            d_o[i] = *reinterpret_cast<const uint4*>(head_of(arguments.d_o, head) +
                                                     token * arguments.d_o.token_stride + column);
        }
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
        float delta = dot(o_rest[i], d_o[i]) + dot(o[i], d_o[i]);
#pragma unroll
        for (int distance = kLanesPerRow / 2; distance > 0; distance /= 2) {
            delta += __shfl_xor_sync(~0u, delta, distance);
        }
        const unsigned row = first + i * kRowsAtOnce;
        if (row < rows && column == 0) {
            const int token = static_cast<int>(row / query_heads);
            const int head = static_cast<int>(row % query_heads);
            const int anchor = arguments.anchors_N[token / kBlock];
            const Offset place =
                (head / kGroup * arguments.num_tokens + token) * kGroup + head % kGroup;
            arguments.terms_KR[place] = {
                -kLog2E * arguments.lse_MQ[row], -delta, anchor, anchor + token % kBlock};
        }
    }
}

}  // namespace dflash::kernels
