// SPDX-License-Identifier: Apache-2.0
// A gate that captured features have to pass: before the first step, and now and then while a run
// goes on, the beginnings of a row's first and last document are run through a target again and
// compared with what the row's slot holds, and a few tokens are decoded and compared with both
// (feature_judge.hpp).
//
// A check waits for the target and for the drafter of the row, so none is made but when due. It
// costs the forward of at most 128 tokens, of 32 tokens in a cache, half of them one by one, and
// two passes over the row's features.
#pragma once

#include <dflash/train/drafter_rank.hpp>
#include <dflash/train/feature_judge.hpp>
#include <dflash/train/feature_slots.hpp>
#include <dflash/train/settings.hpp>
#include <dflash/train/target_replica.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

/// Used by the training loop's thread.
class FeatureGate {
  public:
    /// `targets` and `ranks` must outlive the gate. `place_of` names a sample in messages.
    FeatureGate(std::vector<std::unique_ptr<TargetReplica>>& targets,
                std::vector<std::unique_ptr<DrafterRank>>& ranks,
                std::function<std::string(SampleId)> place_of,
                const GateSettings& settings);

    /// Takes the memory that a check of such a row needs on the devices.
    void warm_up(const data::PackedRow& row, const std::vector<FeatureSlot>& slots);

    /// Whether the next row is to be checked: all rows of the first step after a start, then one
    /// row every gate.every. `trained_s`: of this run.
    bool due(std::int64_t step, double trained_s) const;

    /// Checks a row whose slot nobody writes meanwhile. Throws the fault: Error{Numeric} where the
    /// target computes it, Error{Internal} where the slot holds something else.
    void check(const data::PackedRow& row,
               const FeatureSlot& slot,
               DrafterRank& owner,
               std::int64_t step,
               double trained_s);

  private:
    FeatureEvidence gather(const data::PackedRow& row,
                           const FeatureSlot& slot,
                           DrafterRank& owner,
                           TargetReplica& target) const;
    double tolerance() const;

    std::vector<std::unique_ptr<TargetReplica>>& targets_;
    std::vector<std::unique_ptr<DrafterRank>>& ranks_;
    std::function<std::string(SampleId)> place_of_;
    GateSettings settings_;
    std::deque<KnownFeatures> earlier_;
    std::size_t next_target_ = 0;
    std::optional<std::int64_t> first_step_;
    std::optional<double> checked_at_s_;
    bool told_ = false;
};

}  // namespace dflash::train
