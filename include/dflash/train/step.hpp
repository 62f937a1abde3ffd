// SPDX-License-Identifier: Apache-2.0
// One optimizer step over rows_per_step packed rows, spread over the drafters. No logging, no
// files, no configuration.
#pragma once

#include <dflash/pipeline/pipeline.hpp>
#include <dflash/train/drafter_rank.hpp>
#include <dflash/train/numeric_policy.hpp>

#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <vector>

namespace dflash::train {

/// What a step computed; host values, complete. Of a skipped step loss, accuracy and norm are what
/// they are, NaN perhaps.
struct StepReport {
    double loss = 0;           ///< sum of w m CE, divided as model::loss_divisor says
    double accuracy = 0;       ///< share of right labels over all slots
    double gradient_norm = 0;  ///< before clipping
    std::int64_t labels = 0;
    std::int64_t tokens = 0;
    std::int64_t rows = 0;
    std::optional<NonFinite> non_finite;  ///< set: the step was skipped, for this
};

/// A step on its way: the report when the drafters have done it.
class PendingStep {
  public:
    /// Waits for the drafters. Throws the run's first error.
    StepReport wait();

  private:
    friend class Step;
    std::optional<NonFinite> why_skipped(const std::vector<StepValues>& values) const;

    std::int64_t number_ = 0;
    std::vector<std::future<StepResult>> results_;  // one per drafter
    std::vector<DrafterRank*> ranks_;
    std::vector<std::vector<SampleId>> row_samples_;  // of every row, in order
    double divisor_ = 0;
    StepReport counts_;
};

/// Collects rows and hands them to their drafters. Used by the training loop's thread.
class Step {
  public:
    Step(std::vector<std::unique_ptr<DrafterRank>>& ranks,
         std::vector<FeatureSlot>& slots,
         std::int64_t rows_per_step);

    bool full() const { return counts_.rows == rows_per_step_; }

    bool empty() const { return counts_.rows == 0; }

    /// Forward, loss and backward of a row on its drafter, which owns the row's slot. Does not
    /// wait; the lease is released when the row is done. Empty rows are released at once and do not
    /// count.
    void add(pipeline::RowLease row);

    /// Reduction, clipping and update on all drafters. Does not wait. `number` is for reports.
    PendingStep finish(std::int64_t number, double learning_rate);

  private:
    std::vector<std::unique_ptr<DrafterRank>>& ranks_;
    std::vector<FeatureSlot>& slots_;
    std::int64_t rows_per_step_;
    StepReport counts_;
    std::vector<std::vector<SampleId>> row_samples_;
    double divisor_ = 0;
};

}  // namespace dflash::train
