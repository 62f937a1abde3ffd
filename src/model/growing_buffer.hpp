// SPDX-License-Identifier: Apache-2.0
// Memory that is allocated once at the largest size seen and used again and again, so that steady
// training allocates little.
#pragma once

#include <ATen/ATen.h>
#include <functional>
#include <numeric>

namespace dflash::model {

class GrowingBuffer {
  public:
    /// A contiguous tensor over this memory; its content is undefined, and a later call may give
    /// the same memory out again.
    at::Tensor take(at::IntArrayRef shape, at::TensorOptions options) {
        const std::int64_t numel =
            std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
        if (!storage_.defined() || storage_.numel() < numel ||
            storage_.scalar_type() != at::typeMetaToScalarType(options.dtype())) {
            storage_ = at::Tensor();  // give the old memory back before asking for more
            storage_ = at::empty({numel}, options);
        }
        return storage_.narrow(0, 0, numel).view(shape);
    }

    std::int64_t bytes() const {
        return storage_.defined()
                   ? storage_.numel() * static_cast<std::int64_t>(storage_.itemsize())
                   : 0;
    }

  private:
    at::Tensor storage_;
};

}  // namespace dflash::model
