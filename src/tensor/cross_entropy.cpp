// SPDX-License-Identifier: Apache-2.0
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/cross_entropy.hpp>

#include <tuple>

namespace dflash::tensor {

at::Tensor cross_entropy_out(const at::Tensor& cross_entropy_C,
                             const at::Tensor& argmax_C,
                             const at::Tensor& logits_CV,
                             const at::Tensor& label_C) {
    expect_dtype(logits_CV, sum_dtype(logits_CV.scalar_type()), "logits of a cross-entropy");
    const at::Tensor label_C1 = label_C.unsqueeze(1);
    const at::Tensor cross_entropy_C1 = cross_entropy_C.unsqueeze(1);
    const auto [maximum_C1, first_C1] = logits_CV.max(1, /*keepdim=*/true);
    argmax_C.copy_(first_C1.squeeze(1));
    cross_entropy_C1.copy_(maximum_C1 - logits_CV.gather(1, label_C1));
    logits_CV.sub_(maximum_C1).exp_();
    at::Tensor total_C1 = logits_CV.sum(1, /*keepdim=*/true);
    cross_entropy_C1.add_(total_C1.log());
    // The label's entry is subtracted before rounding to the dtype of products, where P near 1
    // would lose what is left of it.
    logits_CV.scatter_add_(1, label_C1, -total_C1);
    return total_C1;
}

}  // namespace dflash::tensor
