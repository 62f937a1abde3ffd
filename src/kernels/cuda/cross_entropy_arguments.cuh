// SPDX-License-Identifier: Apache-2.0
// What the kernel of the cross-entropy is launched with. Included by the kernel and by the host
// code that fills the struct, so neither language's headers may be used here.
//
// C rows, V words. Strides are between rows, in elements; the V elements of a row are contiguous.
#pragma once

namespace dflash::kernels {

struct CrossEntropyArguments {
    const void* logits_CV;
    const long long* label_C;
    float* cross_entropy_C;
    long long* argmax_C;
    void* gradient_CV;        // bf16 or e5m2; may begin where the logits do; null: not wanted
    float* gradient_scale_C;  // of e5m2
    long long logits_stride;
    long long gradient_stride;
    int vocabulary;  // V
};

}  // namespace dflash::kernels
