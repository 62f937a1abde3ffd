// SPDX-License-Identifier: Apache-2.0
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/swiglu.hpp>

#include <algorithm>

namespace dflash::tensor {

void swiglu_out(const at::Tensor& y, const at::Tensor& gate, const at::Tensor& up) {
    const at::ScalarType sum = sum_dtype(gate.scalar_type());
    if (gate.scalar_type() == sum && y.scalar_type() == sum) {
        at::Tensor out = y;
        at::silu_out(out, gate);
        out.mul_(up);
    } else {
        y.copy_(at::silu(gate.to(sum)).mul_(up));
    }
}

void swiglu_backward_out(const at::Tensor& dgate,
                         const at::Tensor& dup,
                         const at::Tensor* y,
                         const at::Tensor& dy,
                         const at::Tensor& gate,
                         const at::Tensor& up) {
    const at::ScalarType sum = sum_dtype(gate.scalar_type());
    // In pieces of rows, which bounds the temporaries. Everything is read before anything is
    // written, so gradients may take the place of what they belong to.
    const std::int64_t rows = gate.size(0);
    const std::int64_t columns =
        std::max<std::int64_t>(1, gate.numel() / std::max<std::int64_t>(rows, 1));
    const std::int64_t piece = std::max<std::int64_t>(1, kSwigluPiece / columns);
    for (std::int64_t begin = 0; begin < rows; begin += piece) {
        const std::int64_t count = std::min(piece, rows - begin);
        const auto of = [&](const at::Tensor& x) { return x.narrow(0, begin, count); };
        const at::Tensor gate_sum = of(gate).to(sum);
        const at::Tensor dy_sum = of(dy).to(sum);
        at::Tensor activation = at::silu(gate_sum);
        const at::Tensor again = y == nullptr ? at::Tensor() : at::mul(activation, of(up));
        const at::Tensor dgate_sum = at::silu_backward(at::mul(dy_sum, of(up)), gate_sum);
        of(dup).copy_(activation.mul_(dy_sum));
        of(dgate).copy_(dgate_sum);
        if (y != nullptr) {
            of(*y).copy_(again);
        }
    }
}

}  // namespace dflash::tensor
