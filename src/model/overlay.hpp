// SPDX-License-Identifier: Apache-2.0
// Places for tensors in one piece of memory, where those that are never in use together lie over
// each other.
#pragma once

#include <dflash/core/types.hpp>

#include <ATen/ATen.h>
#include <algorithm>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <utility>

namespace dflash::model {

class Overlay {
  public:
    /// Without memory: tensors are on the meta device, to learn what is needed.
    Overlay() = default;

    /// `memory_X`: bytes, at least as many as an Overlay without memory has counted.
    explicit Overlay(at::Tensor memory_X) : memory_X_(std::move(memory_X)) {}

    /// The next place, as a contiguous tensor.
    at::Tensor take(at::IntArrayRef shape, at::ScalarType dtype) {
        const std::int64_t numel =
            std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
        const Bytes bytes = numel * static_cast<Bytes>(at::elementSize(dtype));
        const Bytes begin = end_;
        end_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
        bytes_ = std::max(bytes_, end_);
        if (!memory_X_.defined()) {
            return at::empty(shape, at::TensorOptions(at::kMeta).dtype(dtype));
        }
        return memory_X_.narrow(0, begin, bytes).view(dtype).view(shape);
    }

    /// Calls each of `groups`. What they take begins at the same place.
    void in_turn(std::initializer_list<std::function<void()>> groups) {
        const Bytes begin = end_;
        Bytes end = begin;
        for (const std::function<void()>& group : groups) {
            end_ = begin;
            group();
            end = std::max(end, end_);
        }
        end_ = end;
    }

    /// Up to the end of what was taken.
    Bytes bytes() const { return bytes_; }

  private:
    static constexpr Bytes kAlignment = 512;  // as LibTorch's allocators align at least on GPUs

    at::Tensor memory_X_;
    Bytes end_ = 0;
    Bytes bytes_ = 0;
};

}  // namespace dflash::model
