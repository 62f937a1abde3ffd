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

/// Serves all sizes of vocabularies.
KernelSpec cross_entropy_kernel(Element logits);

struct CrossEntropyTensors {
    RowTensor logits_CV;
    const std::int64_t* label_C = nullptr;  ///< 0 .. V - 1
    float* cross_entropy_C = nullptr;
    std::int64_t* argmax_C = nullptr;  ///< the smallest index of the largest logit

    /// bf16, if not null: P - onehot(label). May begin where the logits begin, with rows as many
    /// bytes apart; the logits are gone then.
    RowTensor gradient_CV{};
};

/// Logits that are not finite give a loss and a gradient that are not, unless they are -infinity.
void cross_entropy(const LoadedKernel& kernel,
                   const CrossEntropyTensors& tensors,
                   std::int64_t num_rows,
                   std::int64_t vocabulary,
                   gpu::StreamView stream);

}  // namespace dflash::kernels
