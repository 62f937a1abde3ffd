// SPDX-License-Identifier: Apache-2.0
// Backward of the gated activation, in fp32 inside: with s = sigmoid(gate),
//   dgate = dy up s (1 + gate (1 - s)),   dup = dy gate s,   y = gate s up if it is wanted.
// Constants of the instance: those of swiglu_vectors.cuh. Bytes per element of dy: 10, 12 with y;
// about 12 operations.
#include "swiglu_arguments.cuh"
#include "swiglu_vectors.cuh"

namespace dflash::kernels {

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    swiglu_backward(const __grid_constant__ SwigluBackwardArguments arguments) {
    const LaneVectors vectors(arguments.num_rows, arguments.inner);
    Bf16Vector dy[kVectors] = {};
    Bf16Vector gate[kVectors] = {};
    Bf16Vector up[kVectors] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        Offset row;
        int column;
        if (vectors.find(i, row, column)) {
            dy[i] = load_once<kElements>(at(arguments.dy_RI, row, arguments.dy_stride, column));
            gate[i] =
                load_once<kElements>(at(arguments.gate_RI, row, arguments.gate_stride, column));
            up[i] = load_once<kElements>(at(arguments.up_RI, row, arguments.up_stride, column));
        }
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        float dgate[kElements];
        float dup[kElements];
        float y[kElements];
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            const float g = element(gate[i], e);
            const float s = sigmoid(g);
            const float activation = g * s;
            dgate[e] = element(dy[i], e) * element(up[i], e) * s * fmaf(g, 1.0f - s, 1.0f);
            dup[e] = element(dy[i], e) * activation;
            y[e] = activation * element(up[i], e);
        }
        Offset row;
        int column;
        if (vectors.find(i, row, column)) {
            store(at(arguments.dgate_RI, row, arguments.dgate_stride, column),
                  rounded<BFloat16>(dgate));
            store(at(arguments.dup_RI, row, arguments.dup_stride, column), rounded<BFloat16>(dup));
            if (arguments.y_RI != nullptr) {
                store(at(arguments.y_RI, row, arguments.y_stride, column), rounded<BFloat16>(y));
            }
        }
    }
}

}  // namespace dflash::kernels
