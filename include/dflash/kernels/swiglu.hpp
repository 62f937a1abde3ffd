// SPDX-License-Identifier: Apache-2.0
// The gated activation of the MLP as CUDA kernels: y = silu(gate) up with silu(g) = g sigmoid(g),
// in fp32 inside, forward and backward.
//
// R rows of I, I a multiple of 8; all bf16. gate and up may be halves of one buffer [R, 2 I]: views
// with its row stride. Results are the same bit for bit every time. All launches are asynchronous
// on the stream given last, a stream of the kernels' device; nothing is allocated, and without rows
// nothing is launched. Shapes, types and alignment are checked: Error{Internal}.
#pragma once

#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/kernel_spec.hpp>
#include <dflash/kernels/launch.hpp>
#include <dflash/kernels/row_tensor.hpp>

#include <cstdint>

namespace dflash::kernels {

/// The kernels serve all sizes.
KernelSpec swiglu_forward_kernel();

KernelSpec swiglu_backward_kernel();

struct SwigluForwardTensors {
    RowTensor gate_RI;
    RowTensor up_RI;
    RowTensor y_RI;
};

void swiglu_forward(const LoadedKernel& kernel,
                    const SwigluForwardTensors& tensors,
                    std::int64_t num_rows,
                    std::int64_t inner,
                    gpu::StreamView stream);

struct SwigluBackwardTensors {
    RowTensor dy_RI;
    RowTensor gate_RI;
    RowTensor up_RI;
    RowTensor dgate_RI;
    RowTensor dup_RI;

    /// The output of the forward again, if not null.
    RowTensor y_RI{};
};

/// With s = sigmoid(gate): dgate = dy up s (1 + gate (1 - s)), dup = dy gate s. dgate may be gate,
/// dup up and y dy; there must be no other overlap.
void swiglu_backward(const LoadedKernel& kernel,
                     const SwigluBackwardTensors& tensors,
                     std::int64_t num_rows,
                     std::int64_t inner,
                     gpu::StreamView stream);

}  // namespace dflash::kernels
