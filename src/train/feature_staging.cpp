// SPDX-License-Identifier: Apache-2.0
#include "feature_staging.hpp"

#include <dflash/gpu/peer_copy.hpp>

namespace dflash::train {

FeatureStaging::FeatureStaging(at::Device device,
                               std::int64_t num_planes,
                               std::int64_t max_tokens,
                               std::int64_t hidden_size)
    : planes_KTH_(at::empty({num_planes, max_tokens, hidden_size},
                            at::TensorOptions(device).dtype(at::kBFloat16))),
      filled_(static_cast<std::size_t>(num_planes)),
      sent_(static_cast<std::size_t>(num_planes)) {}

void FeatureStaging::send(std::size_t k,
                          const at::Tensor& residual_TH,
                          const at::Tensor& to_TH,
                          gpu::StreamView compute) {
    const at::Tensor plane_TH =
        planes_KTH_.select(0, static_cast<std::int64_t>(k)).narrow(0, 0, residual_TH.size(0));
    sent_[k].wait(compute);
    plane_TH.copy_(residual_TH, /*non_blocking=*/true);
    filled_[k].record(compute);
    filled_[k].wait(copies_.view());
    gpu::copy_async(to_TH.data_ptr(),
                    plane_TH.data_ptr(),
                    static_cast<Bytes>(plane_TH.nbytes()),
                    copies_.view());
    sent_[k].record(copies_.view());
}

}  // namespace dflash::train
