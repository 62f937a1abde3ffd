// SPDX-License-Identifier: Apache-2.0
#include "layer_input.hpp"

namespace dflash::model {

at::Tensor fc_columns(const at::Tensor& fc_HX, std::int64_t feature) {
    const std::int64_t H = fc_HX.size(0);
    return fc_HX.narrow(1, feature * H, H);
}

void fuse_features(tensor::RowOps& ops,
                   const at::Tensor& features_KTH,
                   const at::Tensor& fc_HX,
                   const at::Tensor& hidden_norm_H,
                   double eps,
                   const at::Tensor& fused_TH,
                   const at::Tensor& context_TH,
                   const at::Tensor* inverse_rms_T1) {
    // fc as a sum over features, so that they are never copied side by side.
    ops.linear(fused_TH, features_KTH[0], fc_columns(fc_HX, 0));
    for (std::int64_t k = 1; k < features_KTH.size(0); ++k) {
        ops.linear_add(fused_TH, fused_TH, features_KTH[k], fc_columns(fc_HX, k));
    }
    ops.rms_norm(context_TH, fused_TH, hidden_norm_H, eps, inverse_rms_T1);
}

void embed_blocks(const at::Tensor& h_NBH,
                  const at::Tensor& embed_VH,
                  const at::Tensor& anchor_token_N,
                  std::int64_t mask_token) {
    h_NBH.copy_(embed_VH.select(0, mask_token));
    h_NBH.select(1, 0).copy_(embed_VH.index_select(0, anchor_token_N));
}

}  // namespace dflash::model
