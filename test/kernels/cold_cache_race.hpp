// SPDX-License-Identifier: Apache-2.0
// The scene that the original trainer failed in: drafter threads that meet at a cold cache.
#pragma once

#include <dflash/kernels/compile_barrier.hpp>

#include <cstdint>

namespace dflash::kernels {

struct RaceResult {
    std::int64_t num_kernels = 0;
    std::int64_t num_compilations = 0;
    std::int64_t num_loads = 0;
    std::int64_t num_errors = 0;  // threads that threw
};

/// `num_threads` drafters, each on a GPU of its own, arrive at one barrier at the same moment.
RaceResult race(int num_threads, const KernelBuilder& builder, const KernelList& kernels);

}  // namespace dflash::kernels
