// SPDX-License-Identifier: Apache-2.0
// What the kernels of the per-head norm and rotation are launched with. Included by the kernels and
// by the host code that fills these structs, so neither language's headers may be used here.
//
// R rows, N heads, D head size, F pairs that turn. Strides are between rows, in elements; the N D
// elements of a row are contiguous.
#pragma once

namespace dflash::kernels {

struct HeadNormForwardArguments {
    const void* x_RND;     // bf16
    void* y_RND;           // bf16
    const void* weight_D;  // bf16; not read by instances without a norm
    const float* cos_RF;
    const float* sin_RF;
    float* inverse_rms_RN;  // null: not wanted
    long long x_stride;
    long long y_stride;
    long long table_stride;  // of cos and of sin
    int num_units;           // R N
    int num_heads;
    float eps;
};

struct HeadNormBackwardArguments {
    const void* dy_RND;  // bf16 or fp32
    const void* x_RND;   // bf16, the input of the forward
    void* dx_RND;        // bf16
    const void* weight_D;
    const float* cos_RF;
    const float* sin_RF;
    const float* inverse_rms_RN;
    float* partials_PD;  // P = blocks of the grid
    long long dy_stride;
    long long x_stride;
    long long dx_stride;
    long long table_stride;
    int num_units;
    int num_heads;
};

}  // namespace dflash::kernels
