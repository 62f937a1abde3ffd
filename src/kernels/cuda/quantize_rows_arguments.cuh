// SPDX-License-Identifier: Apache-2.0
// What the kernel that rounds rows to 8 bits is launched with. Included by the kernel and by the
// host code that fills the struct, so neither language's headers may be used here.
//
// R rows of C columns. Strides are between rows, in elements; the elements of a row are contiguous.
#pragma once

namespace dflash::kernels {

struct QuantizeRowsArguments {
    const void* x_RC;  // bf16
    void* y_RC;        // e4m3
    float* scale_R;
    long long x_stride;
    long long y_stride;
    int columns;  // C, a multiple of 8
};

}  // namespace dflash::kernels
