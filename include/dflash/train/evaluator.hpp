// SPDX-License-Identifier: Apache-2.0
// Evaluation on held-out rows: accuracy by slot and expected acceptance length of the drafter as it
// is now, beside a bigram table's.
#pragma once

#include <dflash/data/dataset.hpp>
#include <dflash/data/packer.hpp>
#include <dflash/eval/held_out.hpp>
#include <dflash/train/drafter_rank.hpp>
#include <dflash/train/eval_budget.hpp>
#include <dflash/train/progress.hpp>
#include <dflash/train/stop_signals.hpp>
#include <dflash/train/target_replica.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace dflash::train {

/// Held-out rows with their anchors, the same in every evaluation and every run of that seed.
struct HeldOutRows {
    std::vector<data::PackedRow> rows;
    std::int64_t samples = 0;
};

/// Packs the samples of `ids` in their order.
HeldOutRows pack_held_out(const data::Dataset& dataset,
                          const std::vector<SampleId>& ids,
                          const data::PackOptions& options);

/// How many of `num_samples` are held out: fraction of them, at least 16 (of sets under 160: a
/// tenth), at most 512.
std::int64_t num_held_out(double fraction, std::int64_t num_samples);

struct EvalResult {
    std::vector<double> accuracy_by_slot;  ///< slots 1 .. B-1
    double accuracy = 0;
    double acceptance_length = 0;
    double loss = 0;
    std::vector<double> bigram_accuracy_by_slot;
    double bigram_acceptance_length = 0;
    std::int64_t blocks = 0;
    double seconds = 0;
};

class Evaluator {
  public:
    /// `training_ids`: samples whose answers the bigram table is made of (the first 20,000 are
    /// read).
    Evaluator(HeldOutRows rows,
              const data::Dataset& training,
              const std::vector<SampleId>& training_ids,
              std::int32_t block_size,
              std::vector<std::unique_ptr<TargetReplica>>& targets,
              std::vector<std::unique_ptr<DrafterRank>>& ranks,
              const EvalSettings& settings);

    /// Allocates the evaluation's slots: on the drafters' workers, before the first step.
    void allocate(std::int64_t num_features, std::int64_t hidden_size);

    /// Whether an evaluation is due: eval.every has passed since the last one, and the budget
    /// allows one.
    bool due(const Progress& progress) const;

    /// Runs all held-out rows through target and drafter, beside whatever the workers have queued.
    /// Blocks. Gives up between two rows, with no result, when a stop is asked for: an evaluation
    /// may take minutes.
    std::optional<EvalResult> run(const Progress& progress, const StopSignals& signals);

    /// Of eval.max_fraction, since this start; run() adds what it takes.
    EvalBudget& budget() { return budget_; }

    bool empty() const { return rows_.rows.empty(); }

  private:
    /// One row on one target and one drafter at a time; several lanes overlap the two.
    struct Lane {
        TargetReplica* target;
        DrafterRank* rank;
        FeatureSlot slot;
    };

    struct RowOutcome {
        std::vector<TokenId> predicted;
        double loss_sum = 0;
        bool done = false;
    };

    void run_lane(Lane& lane,
                  std::size_t first,
                  std::size_t stride,
                  const StopSignals& signals,
                  std::vector<RowOutcome>& outcomes);

    HeldOutRows rows_;
    std::int32_t block_size_;
    eval::HeldOutScore bigram_;
    std::vector<Lane> lanes_;
    EvalSettings settings_;
    double last_at_s_ = 0;  // trained seconds at the last evaluation
    EvalBudget budget_;
};

}  // namespace dflash::train
