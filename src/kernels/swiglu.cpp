// SPDX-License-Identifier: Apache-2.0
#include "cuda/swiglu_arguments.cuh"
#include "row_launch.hpp"

#include <dflash/core/check.hpp>
#include <dflash/kernels/swiglu.hpp>

namespace dflash::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kVectorSize = 8;
constexpr int kVectors = 1;  // of a lane; more were slower on an H200
constexpr int kBlocks = 4;

Dim3 grid_of_vectors(const KernelSpec& spec, std::int64_t num_rows, std::int64_t inner) {
    DFLASH_CHECK(inner > 0 && inner % kVectorSize == 0,
                 "inner size {}; a multiple of {} expected",
                 inner,
                 kVectorSize);
    return grid_of(num_rows * (inner / kVectorSize), constant_of(spec, "VECTORS") * spec.threads);
}

}  // namespace

KernelSpec swiglu_forward_kernel() {
    return {.source = "swiglu_forward.cu",
            .entry = "swiglu_forward",
            .constants = {{"VECTORS", kVectors}},
            .threads = kThreads,
            .min_blocks_per_sm = kBlocks};
}

KernelSpec swiglu_backward_kernel() {
    return {.source = "swiglu_backward.cu",
            .entry = "swiglu_backward",
            .constants = {{"VECTORS", kVectors}},
            .threads = kThreads,
            .min_blocks_per_sm = kBlocks};
}

void swiglu_forward(const LoadedKernel& kernel,
                    const SwigluForwardTensors& tensors,
                    std::int64_t num_rows,
                    std::int64_t inner,
                    gpu::StreamView stream) {
    check_entry(kernel, "swiglu_forward");
    if (num_rows == 0) {
        return;
    }
    check_rows(tensors.gate_RI, Element::BFloat16, inner, "gate of SwiGLU");
    check_rows(tensors.up_RI, Element::BFloat16, inner, "up of SwiGLU");
    check_rows(tensors.y_RI, Element::BFloat16, inner, "y of SwiGLU");
    launch_with(kernel,
                grid_of_vectors(kernel.spec(), num_rows, inner),
                SwigluForwardArguments{.gate_RI = tensors.gate_RI.data,
                                       .up_RI = tensors.up_RI.data,
                                       .y_RI = tensors.y_RI.data,
                                       .gate_stride = tensors.gate_RI.row_stride,
                                       .up_stride = tensors.up_RI.row_stride,
                                       .y_stride = tensors.y_RI.row_stride,
                                       .num_rows = num_rows,
                                       .inner = narrow<int>(inner)},
                stream);
}

void swiglu_backward(const LoadedKernel& kernel,
                     const SwigluBackwardTensors& tensors,
                     std::int64_t num_rows,
                     std::int64_t inner,
                     gpu::StreamView stream) {
    check_entry(kernel, "swiglu_backward");
    if (num_rows == 0) {
        return;
    }
    check_rows(tensors.dy_RI, Element::BFloat16, inner, "dy of SwiGLU");
    check_rows(tensors.gate_RI, Element::BFloat16, inner, "gate of SwiGLU");
    check_rows(tensors.up_RI, Element::BFloat16, inner, "up of SwiGLU");
    check_rows(tensors.dgate_RI, Element::BFloat16, inner, "dgate of SwiGLU");
    check_rows(tensors.dup_RI, Element::BFloat16, inner, "dup of SwiGLU");
    if (tensors.y_RI.data != nullptr) {
        check_rows(tensors.y_RI, Element::BFloat16, inner, "y of SwiGLU");
    }
    launch_with(kernel,
                grid_of_vectors(kernel.spec(), num_rows, inner),
                SwigluBackwardArguments{.dy_RI = tensors.dy_RI.data,
                                        .gate_RI = tensors.gate_RI.data,
                                        .up_RI = tensors.up_RI.data,
                                        .dgate_RI = tensors.dgate_RI.data,
                                        .dup_RI = tensors.dup_RI.data,
                                        .y_RI = tensors.y_RI.data,
                                        .dy_stride = tensors.dy_RI.row_stride,
                                        .gate_stride = tensors.gate_RI.row_stride,
                                        .up_stride = tensors.up_RI.row_stride,
                                        .dgate_stride = tensors.dgate_RI.row_stride,
                                        .dup_stride = tensors.dup_RI.row_stride,
                                        .y_stride = tensors.y_RI.row_stride,
                                        .num_rows = num_rows,
                                        .inner = narrow<int>(inner)},
                stream);
}

}  // namespace dflash::kernels
