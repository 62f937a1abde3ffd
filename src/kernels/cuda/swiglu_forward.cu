// SPDX-License-Identifier: Apache-2.0
// The gated activation: y = silu(gate) up, silu(g) = g sigmoid(g), in fp32 inside. Constants of the
// instance: those of swiglu_vectors.cuh. Bytes per element of y: 6; about 6 operations.
#include "swiglu_arguments.cuh"
#include "swiglu_vectors.cuh"

namespace dflash::kernels {

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    swiglu_forward(const __grid_constant__ SwigluForwardArguments arguments) {
    const LaneVectors vectors(arguments.num_rows, arguments.inner);
    Bf16Vector gate[kVectors] = {};
    Bf16Vector up[kVectors] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        Offset row;
        int column;
        if (vectors.find(i, row, column)) {
            gate[i] =
                load_once<kElements>(at(arguments.gate_RI, row, arguments.gate_stride, column));
            up[i] = load_once<kElements>(at(arguments.up_RI, row, arguments.up_stride, column));
        }
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        float y[kElements];
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            const float g = element(gate[i], e);
            y[e] = g * sigmoid(g) * element(up[i], e);
        }
        Offset row;
        int column;
        if (vectors.find(i, row, column)) {
            store(at(arguments.y_RI, row, arguments.y_stride, column), rounded<BFloat16>(y));
        }
    }
}

}  // namespace dflash::kernels
