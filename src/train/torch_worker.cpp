// SPDX-License-Identifier: Apache-2.0
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/torch_worker.hpp>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cstdint>
#include <optional>
#include <vector>

namespace dflash::train {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

using c10::CachingAllocator::StatType;

/// What the allocator holds of a GPU and has not given out, of one of its pools or of all.
std::int64_t free_bytes_held(c10::DeviceIndex ordinal, StatType of) {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(ordinal);
    const auto pool = static_cast<std::size_t>(of);
    return stats.reserved_bytes[pool].current - stats.allocated_bytes[pool].current;
}

}  // namespace

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

void keep_room_for_temporaries(const gpu::Device& device) {
    if (!device.is_cuda()) {
        return;
    }
    const auto ordinal = static_cast<c10::DeviceIndex>(device.ordinal);
    const at::TensorOptions bytes = at::TensorOptions().device(at::kCUDA, ordinal).dtype(at::kByte);
    // One piece as large as all free ones together, within reason: large memory that was freed is
    // room already.
    std::vector<at::Tensor> pieces{at::empty(
        {std::clamp(free_bytes_held(ordinal, StatType::AGGREGATE), 64 * kMiB, 512 * kMiB)}, bytes)};
    // Tensors of up to 1 MiB come from a pool of their own, in pieces of 2 MiB that never become
    // one: a few more than are free, for tensors that were larger when the run warmed up.
    const std::int64_t small =
        std::min(free_bytes_held(ordinal, StatType::SMALL_POOL) / kMiB, std::int64_t{48}) + 16;
    for (std::int64_t i = 0; i < small; ++i) {
        pieces.push_back(at::empty({kMiB}, bytes));
    }
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
