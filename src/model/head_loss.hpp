// SPDX-License-Identifier: Apache-2.0
// The frozen head and the cross-entropy over chunks of head rows, with the gradient made at once:
// logits exist for one chunk only, and nothing is computed twice.
#pragma once

#include "row_inputs.hpp"
#include "shapes.hpp"

#include <dflash/model/head_precision.hpp>
#include <dflash/model/loss_weights.hpp>
#include <dflash/tensor/row_ops.hpp>

#include <ATen/ATen.h>
#include <cstdint>

namespace dflash::model {

/// Bytes of a chunk's fp32 logits, at most, or those of one row. Larger chunks make the products
/// faster: 64 rows of 49152 words take 1.6 times as long a row as 448 (one core, MKL).
inline constexpr std::int64_t kHeadChunkBytesCpu = std::int64_t{64} << 20;

/// Rows of a chunk on a GPU: with a hidden size of 4096 the gradient's product has 128 tiles of
/// 128 x 256, one for each multiprocessor of an H200 but four.
inline constexpr std::int64_t kHeadChunkRowsCuda = 1024;

/// Head rows of a chunk, at most: no more than there are.
std::int64_t head_chunk_rows(const Shapes& s, at::Device device);

/// The frozen head, and how to multiply by it.
struct Head {
    at::Tensor head_VH;
    HeadPrecision precision = HeadPrecision::Compute;
    Float8Head float8{};
};

struct HeadLoss {
    at::Tensor loss;             // fp64 scalar: sum of weight x cross-entropy
    at::Tensor weight_R;         // fp32, fp64 for fp64
    at::Tensor correct_B;        // int64
    at::Tensor argmax_R;         // int64
    at::Tensor cross_entropy_R;  // sum dtype
};

/// Logits of z_RH, loss, right answers by slot; with `dz_RH` (sum dtype) also the gradient of the
/// loss with respect to z. Works on chunks of as many rows as `logits_CV` has.
HeadLoss head_loss(const Shapes& s,
                   const at::Tensor& z_RH,
                   const Head& head,
                   const RowInputs& in,
                   const LossWeights& weights,
                   const at::Tensor& logits_CV,
                   tensor::RowOps& ops,
                   const at::Tensor* dz_RH);

}  // namespace dflash::model
