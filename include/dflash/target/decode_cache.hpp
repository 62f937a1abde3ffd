// SPDX-License-Identifier: Apache-2.0
// What a target remembers of the sequences that are being decoded, and how new tokens are put
// behind them.
//
// T new tokens, S sequences of a call, H hidden size.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/core/types.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace dflash::target {

/// Keys and values of sequences; each has a slot of `capacity` tokens, all of it allocated at once.
/// Made by a target, used with that target only. Owned by the caller, not thread-safe: lengths are
/// the host's, and are ahead of the device's work.
class DecodeCache : NonCopyable {
  public:
    virtual ~DecodeCache() = default;

    std::int64_t slots() const { return static_cast<std::int64_t>(lengths_.size()); }

    std::int64_t capacity() const { return capacity_; }

    /// Tokens that a slot holds.
    std::int64_t length(std::int64_t slot) const;

    /// Forgets what comes after the first `length` tokens of a slot. Work of the host only; orders
    /// nothing on the device, where later calls come after earlier ones anyway.
    void truncate(std::int64_t slot, std::int64_t length);

    /// Notes that a slot got `count` tokens more. extend() does so itself, decode() leaves it to
    /// its caller, who may replay it from a graph.
    void note_appended(std::int64_t slot, std::int64_t count);

    /// Bytes on the device.
    virtual Bytes bytes() const = 0;

  protected:
    DecodeCache(std::int64_t slots, std::int64_t capacity);

  private:
    std::int64_t checked(std::int64_t slot) const;

    std::vector<std::int64_t> lengths_;  // by slot
    std::int64_t capacity_;
};

/// New tokens of several sequences, each after what its slot holds.
struct Extension {
    std::span<const TokenId> tokens;       // [T]
    std::span<const std::int32_t> starts;  // [S + 1] first token of each sequence and, last, T
    std::span<const std::int32_t> slots;   // [S] distinct, in any order
};

/// Receives the residual stream after layer `layer`, [T, H]; it is changed by the next layer, so
/// copy it (ordered on the current stream) before returning.
using FeatureSink = std::function<void(std::int64_t layer, const at::Tensor& residual_TH)>;

/// New tokens of several sequences, as many of each (B = T / S), all of it on the device: int32.
/// Slots are distinct, but for the number of slots itself, which stands for nobody and may be there
/// several times, with length 0: its rows of the result mean nothing.
struct DecodeStep {
    at::Tensor tokens_T;   ///< [S B], sequence by sequence
    at::Tensor slots_S;    ///< [S]
    at::Tensor lengths_S;  ///< [S] what the slots hold before
    /// Layers whose residuals `sink` gets, as in TargetModel::extend().
    std::span<const std::int64_t> taps{};
    FeatureSink sink{};
};

}  // namespace dflash::target
