// SPDX-License-Identifier: Apache-2.0
// Copies from one GPU's memory to another's.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/gpu/stream.hpp>

namespace dflash::gpu {

/// Lets the thread's current device read and write the memory of GPU `ordinal` directly (NVLink or
/// PCIe). Returns false where the two cannot: copies then go through the host, slower. Nothing to
/// do for the device itself. Throws Error{Device}.
bool enable_peer_access(int ordinal);

/// Copies `bytes` between any two places of GPU memory. Asynchronous on `stream`, a stream of the
/// thread's current device. Throws Error{Device}.
void copy_async(void* to, const void* from, Bytes bytes, StreamView stream);

}  // namespace dflash::gpu
