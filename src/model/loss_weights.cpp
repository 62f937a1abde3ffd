// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/model/loss_weights.hpp>

#include <cmath>
#include <limits>

namespace dflash::model {

double loss_divisor(const LossWeights& weights, const data::PackedRow& row) {
    return weights.kind == SlotWeighting::Packed ? row.blocks.weight_sum
                                                 : static_cast<double>(row.documents.size());
}

at::Tensor dpace_weights(const LossWeights& weights,
                         const at::Tensor& cross_entropy_R,
                         const at::Tensor& head_row_R,
                         std::int64_t num_blocks,
                         std::int64_t block_size) {
    DFLASH_CHECK(weights.kind != SlotWeighting::Packed, "packed weights are the packer's");
    DFLASH_CHECK(weights.alpha >= 0 && weights.alpha <= 1, "alpha {}", weights.alpha);
    const at::TensorOptions doubles = cross_entropy_R.options().dtype(at::kDouble);
    // ln q' = ln((1 - alpha) e^-ce + alpha), which is finite also where q is not above 0 in fp64.
    const at::Tensor log_R =
        at::logaddexp(cross_entropy_R.to(at::kDouble).neg().add_(std::log1p(-weights.alpha)),
                      at::full({}, std::log(weights.alpha), doubles));
    // Slots that do not count are a factor of 1 and no term of any sum.
    const auto on_slots = [&](const at::Tensor& values_R) {
        return at::zeros({num_blocks * block_size}, doubles)
            .index_copy_(0, head_row_R, values_R)
            .view({num_blocks, block_size});
    };
    const at::Tensor log_NB = on_slots(log_R);
    const at::Tensor counts_NB = on_slots(at::ones_like(log_R));
    // Sums over slots are reductions of [N, B, B], at most 1024 numbers a block: cumulative sums of
    // Torch's are not the same every time on a GPU.
    const at::Tensor upto_BB = at::ones({block_size, block_size}, doubles).tril();
    const at::Tensor prefix_NB = (log_NB.unsqueeze(1) * upto_BB).sum(2);
    at::Tensor weight_NB = at::ones_like(prefix_NB);
    if (weights.kind != SlotWeighting::DpaceSuffix) {
        weight_NB.mul_(prefix_NB.exp());
    }
    if (weights.kind != SlotWeighting::DpacePrefix) {
        // Entry (k, m): the product behind k up to m, by a difference of logarithms that is at most
        // 0 for m >= k.
        const at::Tensor product_NBB =
            (prefix_NB.unsqueeze(1) - prefix_NB.unsqueeze(2))
                .masked_fill_(upto_BB.t().eq(0), -std::numeric_limits<double>::infinity())
                .exp_();
        weight_NB.mul_((product_NBB * counts_NB.unsqueeze(1)).sum(2));
    }
    return weight_NB.view({-1}).index_select(0, head_row_R).to(cross_entropy_R.scalar_type());
}

}  // namespace dflash::model
