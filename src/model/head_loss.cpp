// SPDX-License-Identifier: Apache-2.0
// C rows of a chunk; see shapes.hpp.
#include "head_loss.hpp"

#include <dflash/tensor/linear.hpp>

#include <algorithm>
#include <tuple>

namespace dflash::model {

std::int64_t head_chunk_limit(const Shapes& s, at::Device device) {
    const std::int64_t bytes = device.is_cuda() ? kHeadChunkBytesCuda : kHeadChunkBytesCpu;
    return std::max<std::int64_t>(1, bytes / (4 * s.V));
}

HeadLoss head_loss(const Shapes& s,
                   const at::Tensor& z_RH,
                   const at::Tensor& head_VH,
                   const RowInputs& in,
                   BufferSet& buffers,
                   const at::Tensor* dz_RH) {
    const at::TensorOptions on_device = z_RH.options();
    HeadLoss result;
    result.loss = at::zeros({}, on_device.dtype(at::kDouble));
    result.correct_B = at::zeros({s.B}, on_device.dtype(at::kLong));
    result.argmax_R = at::empty({s.R}, on_device.dtype(at::kLong));
    result.cross_entropy_R = at::empty({s.R}, on_device.dtype(s.sum));
    // Chunks of about one size, so that none is small.
    const std::int64_t most = head_chunk_limit(s, z_RH.device());
    const std::int64_t chunks = std::max<std::int64_t>(1, (s.R + most - 1) / most);
    const std::int64_t chunk = (s.R + chunks - 1) / chunks;
    for (std::int64_t begin = 0; begin < s.R; begin += chunk) {
        const std::int64_t C = std::min(chunk, s.R - begin);
        const at::Tensor logits_CV = buffers.take("logits", {C, s.V}, s.sum);
        tensor::linear_out(logits_CV, z_RH.narrow(0, begin, C), head_VH);
        const at::Tensor label_C1 = in.label_R.narrow(0, begin, C).unsqueeze(1);
        const at::Tensor cross_entropy_C1 = result.cross_entropy_R.narrow(0, begin, C).unsqueeze(1);
        const auto [maximum_C1, argmax_C1] = logits_CV.max(1, /*keepdim=*/true);
        result.argmax_R.narrow(0, begin, C).copy_(argmax_C1.squeeze(1));
        cross_entropy_C1.copy_(maximum_C1 - logits_CV.gather(1, label_C1));
        logits_CV.sub_(maximum_C1).exp_();
        const at::Tensor total_C1 = logits_CV.sum(1, /*keepdim=*/true);
        cross_entropy_C1.add_(total_C1.log());
        if (dz_RH == nullptr) {
            continue;
        }
        // dz = weight (P - onehot(label)) W with P = exp / total: the factors of a row are applied
        // to the product. The label's entry is subtracted before rounding to the dtype of products,
        // where P near 1 would lose what is left of it.
        logits_CV.scatter_add_(1, label_C1, -total_C1);
        at::Tensor gradient_CV = logits_CV;
        if (s.compute != s.sum) {
            gradient_CV = buffers.take("logits_gradient", {C, s.V}, s.compute).copy_(logits_CV);
        }
        const at::Tensor dz_CH = dz_RH->narrow(0, begin, C);
        tensor::linear_backward_input_out(dz_CH, gradient_CV, head_VH);
        dz_CH.mul_(in.weight_R.narrow(0, begin, C).unsqueeze(1) / total_C1);
    }
    result.loss.add_(at::mul(result.cross_entropy_R.to(at::kDouble), in.weight_R).sum());
    result.correct_B.index_add_(0, in.slot_R, result.argmax_R.eq(in.label_R).to(at::kLong));
    return result;
}

}  // namespace dflash::model
