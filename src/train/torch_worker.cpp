// SPDX-License-Identifier: Apache-2.0
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/torch_worker.hpp>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/cuda/CUDAStream.h>
#include <optional>

namespace dflash::train {

void set_up_torch_process() {
    at::globalContext().setAllowTF32CuBLAS(false);
    at::globalContext().setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false);
}

void set_up_torch(const gpu::Device& device) {
    // Sums differ in bits between thread counts, and one worker is one thread of the machine's
    // plan.
    at::set_num_threads(1);
    at::GradMode::set_enabled(false);
    if (device.is_cuda()) {
        // A stream of its own: logical devices on one GPU would otherwise all queue on the default
        // stream.
        c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool(
            /*isHighPriority=*/false, static_cast<c10::DeviceIndex>(device.ordinal)));
    }
}

gpu::StreamView current_stream(const gpu::Device& device) {
    return tensor::current_stream(tensor::torch_device(device));
}

at::ScalarType compute_dtype(const gpu::Device& device) {
    return device.is_cuda() ? at::kBFloat16 : at::kFloat;
}

void synchronize_stream(const gpu::Device& device) {
    if (device.is_cuda()) {
        c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device.ordinal))
            .synchronize();
    }
}

}  // namespace dflash::train
