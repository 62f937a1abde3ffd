// SPDX-License-Identifier: Apache-2.0
// What the device does in a round: drafts, and the target's pass over blocks of them.
//
// S sequences, B slots of a block, D = B - 1 drafts, T rows.
#pragma once

#include "block_verifier.hpp"

#include <dflash/target/target_model.hpp>
#include <dflash/tensor/step_graphs.hpp>

#include <memory>
#include <span>
#include <vector>

namespace dflash::eval {

/// A round on its way, as verify_blocks() takes it.
struct QueuedRound {
    RoundDrafts drafts;
    at::Tensor residual_TH;
    std::vector<std::int32_t> starts;
};

/// Rounds of one source in the slots of one cache. All must outlive this.
class RoundSteps : NonCopyable {
  public:
    /// Graphs take the memory of `before`'s, if there is one.
    RoundSteps(target::TargetModel& target,
               target::DecodeCache& cache,
               DraftSource& source,
               RoundShapes shapes,
               const RoundSteps* before);

    const DraftSource* source() const { return &source_; }

    /// New tokens of some sequences, prompts or what was drafted, behind what the slots hold; the
    /// source absorbs their features. Gives the residual, [T, H].
    at::Tensor extend(std::span<const TokenId> tokens,
                      std::span<const std::int32_t> starts,
                      std::span<const std::int32_t> slots);

    /// Drafts behind each sequence and runs them and the anchors through the target. Slots hold all
    /// of it afterwards; whoever has the verdict cuts it.
    QueuedRound run(std::span<const SequenceView> sequences, const ChoiceRule& rule);

  private:
    QueuedRound run_by_host(std::span<const SequenceView> sequences, const ChoiceRule& rule);
    at::Tensor host_input(std::span<const SequenceView> sequences,
                          const std::vector<std::vector<TokenId>>* drafts) const;

    target::TargetModel& target_;
    target::DecodeCache& cache_;
    DraftSource& source_;
    DeviceDrafts* on_device_;
    std::int64_t block_size_;
    bool has_fixed_blocks_ = false;
    tensor::StepGraphs states_;  // of slot, length and anchor
    tensor::StepGraphs blocks_;  // of slot, length, anchor and drafts
};

}  // namespace dflash::eval
