// SPDX-License-Identifier: Apache-2.0
// What LibTorch keeps per thread, set once when a worker starts: one intra-op thread, no autograd,
// a stream of its own.
#pragma once

#include <dflash/gpu/device.hpp>
#include <dflash/gpu/stream.hpp>

#include <ATen/ATen.h>

namespace dflash::train {

/// To be run first on a worker's thread (gpu::WorkerOptions::on_start).
void set_up_torch(const gpu::Device& device);

/// Once per process, before any worker starts: fp32 products without TF32, bf16 products summed in
/// fp32.
void set_up_torch_process();

/// The current Torch stream of this worker's thread; the empty view on CPU devices.
gpu::StreamView current_stream(const gpu::Device& device);

/// Leaves LibTorch's allocator more than it needs, on this thread's current stream; waits for
/// nothing; nothing on CPU devices. To be called once everything that lasts was allocated and a
/// largest row went through.
///
/// What the allocator holds free is cut as temporaries of other sizes come, and some later row may
/// find no piece that is large enough although the whole is: cudaMalloc in the middle of a step.
void keep_room_for_temporaries(const gpu::Device& device);

/// Weights and activations: bf16 on a GPU, fp32 on the CPU.
at::ScalarType compute_dtype(const gpu::Device& device);

/// Waits until all work of this thread's current stream is done; nothing on CPU devices.
void synchronize_stream(const gpu::Device& device);

}  // namespace dflash::train
