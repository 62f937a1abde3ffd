// SPDX-License-Identifier: Apache-2.0
// Features on their way from a target's GPU to a drafter's: the target's forward goes on while a
// plane travels, and does not wait for the slot.
#pragma once

#include <dflash/gpu/event.hpp>
#include <dflash/gpu/stream.hpp>

#include <ATen/ATen.h>
#include <vector>

namespace dflash::train {

/// K planes on the current device of the thread that makes it (a target's worker), and a stream for
/// the copies. Used by that worker only; destroyed after it has joined.
class FeatureStaging {
  public:
    /// Rows of up to `max_tokens` tokens, bf16 on the GPU `device`.
    FeatureStaging(at::Device device,
                   std::int64_t num_planes,
                   std::int64_t max_tokens,
                   std::int64_t hidden_size);

    /// Copies residual_TH to plane `k` on `compute`, and from there to `to_TH`, contiguous memory
    /// of another GPU, on copies(). Asynchronous. The next send of the plane waits, on the device,
    /// until this one has left.
    void send(std::size_t k,
              const at::Tensor& residual_TH,
              const at::Tensor& to_TH,
              gpu::StreamView compute);

    gpu::StreamView copies() const { return copies_.view(); }

  private:
    at::Tensor planes_KTH_;
    gpu::Stream copies_;
    std::vector<gpu::Event> filled_;
    std::vector<gpu::Event> sent_;
};

}  // namespace dflash::train
