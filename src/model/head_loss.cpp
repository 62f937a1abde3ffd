// SPDX-License-Identifier: Apache-2.0
// C rows of a chunk; see shapes.hpp.
#include "head_loss.hpp"

#include <algorithm>

namespace dflash::model {

std::int64_t head_chunk_rows(const Shapes& s, at::Device device) {
    // On a GPU whole chunks first, whose sizes suit the tiles of its products; on the CPU chunks of
    // about one size, so that none is small.
    if (device.is_cuda()) {
        return std::min(kHeadChunkRowsCuda, s.R);
    }
    const std::int64_t most = std::max<std::int64_t>(1, kHeadChunkBytesCpu / (4 * s.V));
    const std::int64_t chunks = std::max<std::int64_t>(1, (s.R + most - 1) / most);
    return (s.R + chunks - 1) / chunks;
}

HeadLoss head_loss(const Shapes& s,
                   const at::Tensor& z_RH,
                   const Head& head,
                   const RowInputs& in,
                   const LossWeights& weights,
                   const at::Tensor& logits_CV,
                   tensor::RowOps& ops,
                   const at::Tensor* dz_RH) {
    const at::TensorOptions on_device = z_RH.options();
    HeadLoss result;
    result.loss = at::zeros({}, on_device.dtype(at::kDouble));
    result.correct_B = at::zeros({s.B}, on_device.dtype(at::kLong));
    result.argmax_R = at::empty({s.R}, on_device.dtype(at::kLong));
    result.cross_entropy_R = at::empty({s.R}, on_device.dtype(s.sum));
    const bool float8_gradient = head.precision == HeadPrecision::Float8;
    const std::int64_t chunk = logits_CV.size(0);
    for (std::int64_t begin = 0; begin < s.R; begin += chunk) {
        const std::int64_t C = std::min(chunk, s.R - begin);
        const at::Tensor chunk_CV = logits_CV.narrow(0, 0, C);
        const at::Tensor z_CH = z_RH.narrow(0, begin, C);
        if (head.precision == HeadPrecision::Compute) {
            ops.linear(chunk_CV, z_CH, head.head_VH);
        } else {
            ops.float8_linear(chunk_CV, z_CH, head.float8.words_VH);
        }
        const tensor::LogitsGradient gradient =
            ops.cross_entropy(result.cross_entropy_R.narrow(0, begin, C),
                              result.argmax_R.narrow(0, begin, C),
                              chunk_CV,
                              in.label_R.narrow(0, begin, C),
                              float8_gradient ? at::kFloat8_e5m2 : s.compute,
                              dz_RH != nullptr);
        if (dz_RH == nullptr) {
            continue;
        }
        // dz = weight (P - onehot(label)) W: the factors of a row are applied to the product,
        // before which they would be rounded with it.
        const at::Tensor dz_CH = dz_RH->narrow(0, begin, C);
        if (float8_gradient) {
            ops.float8_product(
                dz_CH, {gradient.gradient_CV, gradient.scale_C}, head.float8.columns_HV);
            continue;
        }
        ops.linear_backward_input(dz_CH, /*add=*/false, gradient.gradient_CV, head.head_VH);
        if (gradient.divisor_C1.defined()) {
            dz_CH.div_(gradient.divisor_C1);
        }
    }
    // Weights may follow from the losses of a whole block, so they come after all chunks.
    result.weight_R = weights.kind == SlotWeighting::Packed
                          ? in.weight_R
                          : dpace_weights(weights, result.cross_entropy_R, in.head_row_R, s.N, s.B);
    if (dz_RH != nullptr) {
        dz_RH->mul_(result.weight_R.unsqueeze(1));
    }
    result.loss.add_(at::mul(result.cross_entropy_R.to(at::kDouble), result.weight_R).sum());
    result.correct_B.index_add_(0, in.slot_R, result.argmax_R.eq(in.label_R).to(at::kLong));
    return result;
}

}  // namespace dflash::model
