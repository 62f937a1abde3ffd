// SPDX-License-Identifier: Apache-2.0
// Sizes of the work on one row, in the letters of the drafter's sources.
#pragma once

#include <dflash/data/packed_row.hpp>
#include <dflash/model/config.hpp>

#include <ATen/ATen.h>
#include <cstdint>

namespace dflash::model {

struct Shapes {
    std::int64_t T = 0;  // tokens of the row
    std::int64_t N = 0;  // blocks
    std::int64_t B = 0;  // slots of a block
    std::int64_t M = 0;  // block rows, N B
    std::int64_t U = 0;  // embedded rows, N + 2: see layer_input.hpp
    std::int64_t R = 0;  // head rows
    std::int64_t H = 0;  // hidden size
    std::int64_t I = 0;  // MLP size
    std::int64_t Q = 0;  // query heads
    std::int64_t K = 0;  // key heads
    std::int64_t d = 0;  // head size
    std::int64_t V = 0;  // vocabulary
    double eps = 0;
    at::ScalarType compute = at::kFloat;
    at::ScalarType sum = at::kFloat;  // of sums: fp32, or fp64 for fp64

    Shapes(const DraftConfig& config,
           std::int64_t tokens,
           std::int64_t blocks,
           std::int64_t head_rows,
           at::ScalarType compute_dtype,
           at::ScalarType sum_dtype)
        : T(tokens),
          N(blocks),
          B(config.block_size),
          M(blocks * config.block_size),
          U(blocks + 2),
          R(head_rows),
          H(config.hidden_size),
          I(config.intermediate_size),
          Q(config.num_heads),
          K(config.num_kv_heads),
          d(config.head_dim),
          V(config.vocab_size),
          eps(config.rms_norm_eps),
          compute(compute_dtype),
          sum(sum_dtype) {}
};

}  // namespace dflash::model
