// SPDX-License-Identifier: Apache-2.0
// What the kernels of RMSNorm are launched with. Included by the kernels and by the host code that
// fills these structs, so neither language's headers may be used here.
//
// H hidden size, R rows. Strides are between rows, in elements; the elements of a row are
// contiguous, and vectors of them aligned.
#pragma once

namespace dflash::kernels {

struct RmsNormForwardArguments {
    const void* x_RH;      // bf16 or fp32
    void* residual_RH;     // bf16, read and written; null in instances without
    void* y_RH;            // bf16
    const void* weight_H;  // bf16
    float* inverse_rms_R;  // null: not wanted
    const float* known_R;  // inverse rms of an earlier call; null: computed
    long long x_stride;
    long long residual_stride;
    long long y_stride;
    long long num_rows;
    float eps;
};

struct RmsNormBackwardArguments {
    const void* dy_RH;     // bf16 or fp32
    const void* x_RH;      // bf16 or fp32
    const void* weight_H;  // bf16
    const float* inverse_rms_R;
    void* dx_RH;          // bf16 or fp32; may be dy_RH if they have one type
    void* dx_rounded_RH;  // bf16 copy of dx; null: not wanted
    void* y_RH;           // bf16, the output of the forward again; null: not wanted
    float* partials_PH;   // P = blocks of the grid
    long long dy_stride;
    long long x_stride;
    long long dx_stride;
    long long dx_rounded_stride;
    long long y_stride;
    long long num_rows;
};

struct WeightGradientArguments {
    const float* partials_PH;
    float* dweight_H;  // added to
    long long num_partials;
    int hidden;
};

}  // namespace dflash::kernels
