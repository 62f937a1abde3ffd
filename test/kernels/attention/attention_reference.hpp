// SPDX-License-Identifier: Apache-2.0
// Block attention and its gradients on the host, row by row from its definition: once in fp64, and
// once as a chain of bf16 tensors, the error of which is the yardstick for the kernels'.
#pragma once

#include "attention_case.hpp"

#include <array>
#include <string_view>
#include <vector>

namespace dflash::kernels::test {

/// Dense, in the order of the names.
struct AttentionResults {
    std::vector<double> o;
    std::vector<double> lse;  // [M, Q]
    std::vector<double> dq;
    std::vector<double> dk_context;
    std::vector<double> dv_context;
    std::vector<double> dk_block;
    std::vector<double> dv_block;

    static constexpr std::array<std::string_view, 7> kNames = {
        "O", "LSE", "dQ", "dK_ctx", "dV_ctx", "dK_blk", "dV_blk"};

    std::array<const std::vector<double>*, 7> all() const {
        return {&o, &lse, &dq, &dk_context, &dv_context, &dk_block, &dv_block};
    }
};

AttentionResults exact_attention(const AttentionCase& c, const AttentionInputs& in);

/// Scores, probabilities, their gradients and all results rounded to bf16, sums in fp32.
AttentionResults naive_bf16_attention(const AttentionCase& c, const AttentionInputs& in);

/// ||x - reference|| / ||reference||; 0 where both are zero, infinite where x is not finite.
double relative_error(const std::vector<double>& x, const std::vector<double>& reference);

}  // namespace dflash::kernels::test
