// SPDX-License-Identifier: Apache-2.0
// What ranks bring to a collective.
#pragma once

#include <cstddef>
#include <span>

namespace dflash::comm {

/// One rank's buffer in a collective, with the element-wise work on it: this module knows no
/// tensors. All ranks of one collective bring buffers of the same derived type and size. The work
/// is called on the thread of the rank that owns the buffer, and goes to the stream that this rank
/// gave to the collective; it reads the other ranks' buffers and writes only its own. Calls of
/// different ranks run at the same time, never on overlapping elements.
class Buffer {
  public:
    virtual ~Buffer() = default;

    /// Elements.
    virtual std::size_t size() const = 0;

    /// The values, fp32, in the memory of the rank's device.
    virtual float* data() const = 0;

    /// this[i] = ((ranks[0][i] + ranks[1][i]) + ranks[2][i]) + ... for i in [offset, offset +
    /// count). This buffer is one of `ranks`.
    virtual void sum_of(std::span<const Buffer* const> ranks,
                        std::size_t offset,
                        std::size_t count) = 0;

    /// this[i] = other[i] for i in [offset, offset + count).
    virtual void copy_of(const Buffer& other, std::size_t offset, std::size_t count) = 0;
};

/// fp32 in host memory, which the caller owns.
class HostBuffer final : public Buffer {
  public:
    explicit HostBuffer(std::span<float> values) : values_(values) {}

    std::size_t size() const override { return values_.size(); }

    float* data() const override { return values_.data(); }

    void sum_of(std::span<const Buffer* const> ranks,
                std::size_t offset,
                std::size_t count) override;
    void copy_of(const Buffer& other, std::size_t offset, std::size_t count) override;

  private:
    std::span<float> values_;
};

}  // namespace dflash::comm
