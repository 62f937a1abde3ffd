// SPDX-License-Identifier: Apache-2.0
// Drafts of a drafter.
#pragma once

#include <dflash/eval/draft_source.hpp>
#include <dflash/model/draft_decoder.hpp>

#include <memory>

namespace dflash::eval {

/// At temperature 0 a draft is the largest logit of its slot; else it is drawn by the target's own
/// rule (z-lab/dflash 1012959, `_rejection_sample`'s counterpart in its draft step).
class DrafterSource final : public DraftSource, public DeviceDrafts {
  public:
    /// `block_size` from 2 to the drafter's own. The decoder must outlive the source.
    DrafterSource(model::DraftDecoder& decoder, std::int64_t block_size);

    std::int64_t block_size() const override { return block_size_; }

    std::span<const std::int64_t> taps() const override;
    void allocate(std::int64_t slots, std::int64_t capacity) override;
    void absorb(const at::Tensor& features_KTH,
                std::span<const std::int32_t> starts,
                std::span<const std::int32_t> slots) override;
    void truncate(std::int64_t slot, std::int64_t length) override;
    std::vector<std::vector<TokenId>> propose(std::span<const SequenceView> sequences,
                                              const ChoiceRule& rule) override;
    at::Tensor distributions(std::int64_t first, std::int64_t count) override;

    DeviceDrafts* on_device() override { return this; }

    at::Tensor states(const model::DraftStep& step, const at::Tensor& anchors_S) override;
    at::Tensor choose(const at::Tensor& states_RH,
                      std::span<const SequenceView> sequences,
                      const ChoiceRule& rule) override;
    void absorb_blocks(const at::Tensor& features_KTH, const model::DraftStep& step) override;
    void note_absorbed(std::int64_t slot, std::int64_t count) override;

  private:
    at::Tensor probabilities(const at::Tensor& hidden_RH) const;

    model::DraftDecoder& decoder_;
    std::int64_t block_size_;
    std::unique_ptr<model::DraftCache> cache_;
    target::Sampling sampling_;  // of the last choice
    at::Tensor hidden_RH_;       // of the last choice, R = S D
};

}  // namespace dflash::eval
