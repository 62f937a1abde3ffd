// SPDX-License-Identifier: Apache-2.0
// Where the drafts of a round come from: a drafter, the text so far, or nowhere.
//
// S sequences of a round, D drafts of each at most (block size - 1), T tokens, K tapped layers, H
// hidden size, V vocabulary.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/core/types.hpp>
#include <dflash/model/draft_cache.hpp>
#include <dflash/target/sampling.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <span>
#include <vector>

namespace dflash::eval {

/// How tokens are chosen, drafted ones and the target's alike, and from which uniform numbers.
struct ChoiceRule {
    target::Sampling sampling;
    std::uint64_t seed = 0;
};

/// A sequence in a round.
struct SequenceView {
    std::int32_t slot = 0;
    std::int64_t id = 0;              ///< names the sequence in uniform numbers
    std::span<const TokenId> tokens;  ///< prompt and what was emitted; the last one is the anchor
};

/// What a source gives besides whose drafts come from the target's device and need not go by the
/// host. Nothing here waits for the device.
class DeviceDrafts {
  public:
    virtual ~DeviceDrafts() = default;

    /// What the drafts behind `anchors_S` (int32) are chosen from: [S D, H]. Depends on the device
    /// only, so that a graph can hold it where it can hold the target's decode().
    virtual at::Tensor states(const model::DraftStep& step, const at::Tensor& anchors_S) = 0;

    /// Drafts from such states, int64 [S, D]. Of S, `sequences` are the first; the rest is nobody.
    virtual at::Tensor choose(const at::Tensor& states_RH,
                              std::span<const SequenceView> sequences,
                              const ChoiceRule& rule) = 0;

    /// The target ran a block of each sequence, the anchor's feature first. As states().
    virtual void absorb_blocks(const at::Tensor& features_KTH, const model::DraftStep& step) = 0;

    /// Notes that a slot has absorbed `count` tokens more: absorb_blocks() does not, since it may
    /// be replayed from a graph.
    virtual void note_absorbed(std::int64_t slot, std::int64_t count) = 0;
};

/// Not thread-safe: used by the target's worker only.
class DraftSource : NonCopyable {
  public:
    virtual ~DraftSource() = default;

    /// Slots of a block, the anchor's included: at most this minus 1 drafts a round.
    virtual std::int64_t block_size() const = 0;

    /// Layers of the target whose features absorb() gets, in that order.
    virtual std::span<const std::int64_t> taps() const { return {}; }

    /// Room for that many sequences of up to `capacity` tokens; all slots are empty.
    virtual void allocate(std::int64_t /*slots*/, std::int64_t /*capacity*/) {}

    /// The target ran these tokens, each sequence's behind what it had.
    virtual void absorb(const at::Tensor& /*features_KTH*/,
                        std::span<const std::int32_t> /*starts*/,
                        std::span<const std::int32_t> /*slots*/) {}

    /// Forgets what a slot holds after `length` tokens.
    virtual void truncate(std::int64_t /*slot*/, std::int64_t /*length*/) {}

    /// Drafts for the tokens that follow each sequence, none to D of them. The source has absorbed
    /// all tokens of a sequence but its last one.
    virtual std::vector<std::vector<TokenId>> propose(std::span<const SequenceView> sequences,
                                                      const ChoiceRule& rule) = 0;

    /// Null where drafts come by the host.
    virtual DeviceDrafts* on_device() { return nullptr; }

    /// The distributions that the drafts of sequences first .. first + count - 1 of the last
    /// choice were drawn from, [count, D, V] in fp32; undefined if they were not drawn: each has
    /// all of the probability then.
    virtual at::Tensor distributions(std::int64_t /*first*/, std::int64_t /*count*/) { return {}; }
};

/// No drafts: plain decoding.
class NoDrafts final : public DraftSource {
  public:
    std::int64_t block_size() const override { return 1; }

    std::vector<std::vector<TokenId>> propose(std::span<const SequenceView> sequences,
                                              const ChoiceRule& /*rule*/) override {
        return std::vector<std::vector<TokenId>>(sequences.size());
    }
};

}  // namespace dflash::eval
