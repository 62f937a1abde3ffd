// SPDX-License-Identifier: Apache-2.0
// What goes into the first layer: the context, fused of the tapped features once for all layers,
// and the embedded blocks. K features; other letters: see shapes.hpp.
//
// All slots but the first of a block have the same embedding, so training embeds U = N + 2 rows:
// the anchors, and the mask token twice, which leaves room in the backward for what rounding a sum
// over many rows leaves out.
#pragma once

#include <dflash/tensor/row_ops.hpp>

#include <ATen/ATen.h>
#include <cstdint>

namespace dflash::model {

/// Columns of fc, [H, K H], that belong to one feature.
at::Tensor fc_columns(const at::Tensor& fc_HX, std::int64_t feature);

/// context = hidden_norm(fc(features)). fused takes the output of fc in the dtype of sums,
/// inverse_rms (if given) the norm's factors, for a backward.
void fuse_features(tensor::RowOps& ops,
                   const at::Tensor& features_KTH,
                   const at::Tensor& fc_HX,
                   const at::Tensor& hidden_norm_H,
                   double eps,
                   const at::Tensor& fused_TH,
                   const at::Tensor& context_TH,
                   const at::Tensor* inverse_rms_T1);

/// Slot 0 of every block gets its anchor's embedding, the others the mask token's.
void embed_blocks(const at::Tensor& h_NBH,
                  const at::Tensor& embed_VH,
                  const at::Tensor& anchor_token_N,
                  std::int64_t mask_token);

}  // namespace dflash::model
