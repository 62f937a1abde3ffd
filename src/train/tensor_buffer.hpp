// SPDX-License-Identifier: Apache-2.0
// A flat fp32 tensor as a buffer of the collectives.
#pragma once

#include <dflash/comm/process_group.hpp>

#include <ATen/ATen.h>

namespace dflash::train {

/// Work goes to the current Torch stream of the calling thread, which the caller gives to the
/// collective.
class TensorBuffer final : public comm::Buffer {
  public:
    explicit TensorBuffer(at::Tensor flat) : flat_(std::move(flat)) {}

    std::size_t size() const override { return static_cast<std::size_t>(flat_.numel()); }

    float* data() const override { return flat_.data_ptr<float>(); }

    void sum_of(std::span<const comm::Buffer* const> ranks,
                std::size_t offset,
                std::size_t count) override {
        // This buffer is one of the ranks, so the sum is made beside it, in pieces of bounded size.
        constexpr std::size_t kPiece = std::size_t{1} << 20;
        for (std::size_t at = offset; at < offset + count; at += kPiece) {
            const std::size_t size = std::min(kPiece, offset + count - at);
            at::Tensor sum = part_of(*ranks[0], at, size)
                                 .to(flat_.device(), /*non_blocking=*/true, /*copy=*/true);
            for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
                sum.add_(part_of(*ranks[rank], at, size).to(flat_.device(), /*non_blocking=*/true));
            }
            part_of(*this, at, size).copy_(sum);
        }
    }

    void copy_of(const comm::Buffer& other, std::size_t offset, std::size_t count) override {
        part_of(*this, offset, count).copy_(part_of(other, offset, count), /*non_blocking=*/true);
    }

  private:
    static at::Tensor part_of(const comm::Buffer& buffer, std::size_t offset, std::size_t count) {
        return static_cast<const TensorBuffer&>(buffer).flat_.narrow(
            0, static_cast<std::int64_t>(offset), static_cast<std::int64_t>(count));
    }

    at::Tensor flat_;
};

}  // namespace dflash::train
