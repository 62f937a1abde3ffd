// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

namespace dflash::tensor {

/// max |a - b| / max |b|, in fp64; infinite for different shapes.
inline double largest_error(const at::Tensor& a, const at::Tensor& b) {
    if (a.sizes() != b.sizes()) {
        return INFINITY;
    }
    const at::Tensor expected = b.to(at::kDouble);
    const double scale = expected.abs().max().item<double>();
    return (a.to(at::kDouble) - expected).abs().max().item<double>() / scale;
}

}  // namespace dflash::tensor
