// SPDX-License-Identifier: Apache-2.0
// What the drafter reads of a packed row, as device tensors: one upload of integers, one of
// weights.
#pragma once

#include <dflash/data/packed_row.hpp>

#include <ATen/ATen.h>

namespace dflash::model {

struct RowInputs {
    at::Tensor embedded_token_U;    // int64: see layer_input.hpp
    at::Tensor embedded_M;          // int64: embedded row of every block row
    at::Tensor block_position_M;    // int64: position in the document of every block row
    at::Tensor context_position_T;  // int64
    at::Tensor head_row_R;          // int64: block row of every head row
    at::Tensor slot_R;              // int64
    at::Tensor label_R;             // int64
    at::Tensor weight_R;            // fp32

    RowInputs(const data::PackedRow& row, TokenId mask_token, at::Device device);
};

}  // namespace dflash::model
