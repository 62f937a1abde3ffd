// SPDX-License-Identifier: Apache-2.0
// Where features wait between target and drafter: slot s holds K planes [T, H] on the device of
// drafter s mod D, allocated once and freed after all workers have joined.
#pragma once

#include <dflash/gpu/signal.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <vector>

namespace dflash::train {

/// One slot. The producer (a target's worker) writes planes and records `written`; the consumer
/// (the drafter's worker) waits for it, reads, and records `read`, for which the next producer
/// waits. On CPU devices handing over a task orders the two, and the signals do nothing.
struct FeatureSlot {
    at::Tensor planes_KTH;  ///< [K, T_max, H] in the compute dtype of the drafter
    gpu::Signal written;
    gpu::Signal read;

    /// The planes of a row of T tokens: [K, T, H], each plane contiguous.
    at::Tensor row_planes(std::int64_t num_tokens) const {
        return planes_KTH.narrow(1, 0, num_tokens);
    }
};

}  // namespace dflash::train
