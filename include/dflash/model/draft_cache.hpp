// SPDX-License-Identifier: Apache-2.0
// Keys and values of the context in every layer of a drafter, for sequences that are being decoded.
//
// S sequences of a call.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/core/types.hpp>
#include <dflash/model/config.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <vector>

namespace dflash::model {

/// Each sequence has a slot of `capacity` context tokens, and room behind them for one block; one
/// row behind the slots is there for sequences of nobody (see DraftStep). Owned by the caller, on
/// the decoder's device; not thread-safe.
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

    /// Notes that a slot got `count` tokens more. DraftDecoder::append_context() does so itself,
    /// append_blocks() leaves it to its caller, who may replay it from a graph.
    void note_appended(std::int64_t slot, std::int64_t count);

    Bytes bytes() const;

    /// What a cache of that size takes.
    static Bytes memory_need(const DraftConfig& config,
                             std::int64_t slots,
                             std::int64_t capacity,
                             Bytes element_size);

  private:
    friend class DraftDecoder;

    std::int64_t num_rows() const { return slots() * rows_of_slot_ + 1; }

    /// Row of a position in the tensors below.
    std::int64_t row(std::int64_t slot, std::int64_t position) const {
        return slot * rows_of_slot_ + position;
    }

    std::int64_t capacity_;
    std::int64_t rows_of_slot_;  // capacity + block size
    std::vector<std::int64_t> lengths_;
    std::vector<at::Tensor> keys_;    // of each layer, [rows, heads, head size]
    std::vector<at::Tensor> values_;  // the same
};

/// Sequences of a call, all of it on the device: int32 [S]. Slots are distinct, but for the number
/// of slots itself, which stands for nobody and may be there several times, with length 0: its rows
/// of a result mean nothing.
struct DraftStep {
    at::Tensor slots_S;
    at::Tensor lengths_S;  ///< context tokens that the slots hold before
};

}  // namespace dflash::model
