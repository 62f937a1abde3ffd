// SPDX-License-Identifier: Apache-2.0
// Cross-entropy of rows of logits as a CUDA kernel: loss, argmax and gradient of a row in one
// launch, with an exact gradient where the softmax P is near 1.
//
// C rows of V words. Results are the same bit for bit every time. Asynchronous on the stream given
// last, a stream of the kernel's device; nothing is allocated, and without rows nothing is
// launched. Shapes, types and alignment are checked: Error{Internal}; labels are not, since they
// are on the device.
#pragma once

#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/kernel_spec.hpp>
#include <dflash/kernels/launch.hpp>
#include <dflash/kernels/row_tensor.hpp>

#include <cstdint>

namespace dflash::kernels {

/// Serves all sizes of vocabularies. A gradient in e5m2 is for fp32 logits, and for architectures
/// that have it (has_float8).
KernelSpec cross_entropy_kernel(Element logits, Element gradient = Element::BFloat16);

struct CrossEntropyTensors {
    RowTensor logits_CV;
    const std::int64_t* label_C = nullptr;  ///< 0 .. V - 1
    float* cross_entropy_C = nullptr;
    std::int64_t* argmax_C = nullptr;  ///< the smallest index of the largest logit

    /// If not null: P - onehot(label). May begin where the logits begin, with rows as many bytes
    /// apart; the logits are gone then.
    RowTensor gradient_CV{};

    /// With a gradient in e5m2, what its rows are to be multiplied by: (1 - P(label)) / 2^15, so
    /// that the label's entry is -2^15, exactly. Where the sum of e^(x - max) over the other words
    /// is below 2^-100 the gradient is zeros.
    float* gradient_scale_C = nullptr;
};

/// Logits that are not finite give a loss and a gradient that are not, unless they are -infinity.
void cross_entropy(const LoadedKernel& kernel,
                   const CrossEntropyTensors& tensors,
                   std::int64_t num_rows,
                   std::int64_t vocabulary,
                   gpu::StreamView stream);

}  // namespace dflash::kernels
