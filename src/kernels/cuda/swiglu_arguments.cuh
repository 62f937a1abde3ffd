// SPDX-License-Identifier: Apache-2.0
// What the kernels of SwiGLU are launched with. Included by the kernels and by the host code that
// fills these structs, so neither language's headers may be used here.
//
// R rows, I inner size (a multiple of 8); all bf16. Strides are between rows, in elements; the I
// elements of a row are contiguous.
#pragma once

namespace dflash::kernels {

struct SwigluForwardArguments {
    const void* gate_RI;
    const void* up_RI;
    void* y_RI;
    long long gate_stride;
    long long up_stride;
    long long y_stride;
    long long num_rows;
    int inner;  // I
};

struct SwigluBackwardArguments {
    const void* dy_RI;
    const void* gate_RI;
    const void* up_RI;
    void* dgate_RI;
    void* dup_RI;
    void* y_RI;  // the output of the forward again; null: not wanted
    long long dy_stride;
    long long gate_stride;
    long long up_stride;
    long long dgate_stride;
    long long dup_stride;
    long long y_stride;
    long long num_rows;
    int inner;
};

}  // namespace dflash::kernels
