// SPDX-License-Identifier: Apache-2.0
// The frozen head in 8 bits.
#pragma once

#include <dflash/model/head_precision.hpp>
#include <dflash/tensor/row_ops.hpp>

#include <ATen/ATen.h>

namespace dflash::model {

/// Rounds the head in pieces, without temporaries of its size. Throws Error{Config} where the
/// device has no such products.
Float8Head make_float8_head(const at::Tensor& head_VH,
                            HeadPrecision precision,
                            tensor::RowOps& ops);

}  // namespace dflash::model
