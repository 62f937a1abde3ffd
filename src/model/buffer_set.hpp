// SPDX-License-Identifier: Apache-2.0
// The drafter's buffers by name: allocated once at the largest size seen, used again for every row.
// On the meta device the same code allocates nothing and tells what a row would need.
#pragma once

#include "growing_buffer.hpp"

#include <dflash/core/types.hpp>

#include <algorithm>
#include <map>
#include <string>

namespace dflash::model {

class BufferSet {
  public:
    explicit BufferSet(at::Device device) : device_(device) {}

    /// Memory of that name as a contiguous tensor; its content is what was left there, and a later
    /// call with the same name gives it out again.
    at::Tensor take(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype) {
        return buffers_[name].take(shape, at::TensorOptions(device_).dtype(dtype));
    }

    Bytes bytes() const {
        Bytes sum = 0;
        for (const auto& [name, buffer] : buffers_) {
            sum += buffer.bytes();
        }
        return sum;
    }

    Bytes largest() const {
        Bytes result = 0;
        for (const auto& [name, buffer] : buffers_) {
            result = std::max(result, buffer.bytes());
        }
        return result;
    }

  private:
    at::Device device_;
    std::map<std::string, GrowingBuffer> buffers_;
};

}  // namespace dflash::model
