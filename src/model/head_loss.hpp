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

/// Bytes of a chunk's fp32 logits, at most, or those of one row. Larger chunks make the products
/// faster: 64 rows of 49152 words take 1.6 times as long a row as 448 (one core, MKL).
inline constexpr std::int64_t kHeadChunkBytesCpu = std::int64_t{64} << 20;
inline constexpr std::int64_t kHeadChunkBytesCuda = std::int64_t{256} << 20;

/// Head rows of a chunk, at most.
std::int64_t head_chunk_limit(const Shapes& s, at::Device device);

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
