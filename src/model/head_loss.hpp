// SPDX-License-Identifier: Apache-2.0
// The frozen head and the cross-entropy over chunks of head rows, with the gradient made at once:
// logits exist for one chunk only.
#pragma once

#include "buffer_set.hpp"
#include "row_inputs.hpp"
#include "shapes.hpp"

#include <ATen/ATen.h>
#include <cstdint>

namespace dflash::model {

/// Head rows of a chunk, so that its logits in fp32 stay under 32 MiB on the CPU and 256 MiB on a
/// GPU, or are those of one row.
std::int64_t head_chunk_rows(const Shapes& s, at::Device device);

struct HeadLoss {
    at::Tensor loss;             // fp64 scalar: sum of weight x cross-entropy
    at::Tensor correct_B;        // int64
    at::Tensor argmax_R;         // int64
    at::Tensor cross_entropy_R;  // sum dtype
};

/// Logits of z_RH, loss, right answers by slot; with `dz_RH` (sum dtype) also the gradient of the
/// loss with respect to z.
HeadLoss head_loss(const Shapes& s,
                   const at::Tensor& z_RH,
                   const at::Tensor& head_VH,
                   const RowInputs& in,
                   BufferSet& buffers,
                   const at::Tensor* dz_RH);

}  // namespace dflash::model
