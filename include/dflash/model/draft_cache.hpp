// SPDX-License-Identifier: Apache-2.0
// Keys and values of the context in every layer of a drafter, for sequences that are being decoded.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/core/types.hpp>
#include <dflash/model/config.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <vector>

namespace dflash::model {

/// Each sequence has a slot of `capacity` context tokens, and room behind them for one block. Owned
/// by the caller, on the decoder's device; not thread-safe.
class DraftCache : NonCopyable {
  public:
    DraftCache(const DraftConfig& config,
               std::int64_t slots,
               std::int64_t capacity,
               at::TensorOptions options);

    std::int64_t slots() const { return static_cast<std::int64_t>(lengths_.size()); }

    std::int64_t capacity() const { return capacity_; }

    /// Context tokens of a slot: the positions 0 .. length - 1 of its sequence.
    std::int64_t length(std::int64_t slot) const;

    /// Forgets what comes after; host only, no device work.
    void truncate(std::int64_t slot, std::int64_t length);

    Bytes bytes() const;

    /// What a cache of that size takes.
    static Bytes memory_need(const DraftConfig& config,
                             std::int64_t slots,
                             std::int64_t capacity,
                             Bytes element_size);

  private:
    friend class DraftDecoder;

    /// Row of a position in the tensors below.
    std::int64_t row(std::int64_t slot, std::int64_t position) const {
        return slot * rows_of_slot_ + position;
    }

    std::int64_t capacity_;
    std::int64_t rows_of_slot_;  // capacity + block size
    std::vector<std::int64_t> lengths_;
    std::vector<at::Tensor> keys_;    // of each layer, [slots x rows of a slot, heads, head size]
    std::vector<at::Tensor> values_;  // the same
};

}  // namespace dflash::model
