// SPDX-License-Identifier: Apache-2.0
// The training loop: short enough to read. Rows come from the pipeline in order, steps go to the
// drafters, and whatever happens once in a while asks whether it is due.
#pragma once

#include <dflash/core/activity.hpp>
#include <dflash/pipeline/pipeline.hpp>
#include <dflash/train/acceptance_evaluator.hpp>
#include <dflash/train/checkpoint.hpp>
#include <dflash/train/checkpoint_writer.hpp>
#include <dflash/train/evaluator.hpp>
#include <dflash/train/feature_gate.hpp>
#include <dflash/train/progress.hpp>
#include <dflash/train/run_report.hpp>
#include <dflash/train/schedule.hpp>
#include <dflash/train/step.hpp>
#include <dflash/train/stop_signals.hpp>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace dflash::train {

/// Everything the loop works with; owned by the session, which outlives the trainer.
struct TrainerParts {
    pipeline::Pipeline& pipeline;
    std::vector<std::unique_ptr<DrafterRank>>& ranks;
    std::vector<FeatureSlot>& slots;
    Evaluator& evaluator;
    AcceptanceEvaluator* acceptance;  ///< null: no real decoding
    FeatureGate& gate;
    CheckpointStore& checkpoints;
    CheckpointWriter& writer;
    RunReport& report;
    StopSignals& signals;
    Activity& loop;  ///< what the loop's thread does, for reports
    RunLength length;
    Identity identity;
    ProductRecord products;  ///< goes into every checkpoint
    const Settings& settings;
    bool data_goes_on = false;  ///< rows that end before the run's length are not the last ones
    std::function<void(const data::PackedRow&)> on_row{};  ///< sees every row that is taken
};

class Trainer {
  public:
    /// `progress`: zero for a new run, or where a checkpoint stands.
    Trainer(TrainerParts parts, Progress progress);

    /// Trains until the run's length is reached, the data is used up, or a stop is asked for;
    /// evaluates and saves at the end. Throws the run's first error, after which nothing is
    /// written.
    Progress run();

    /// Whether it ended for want of rows that are still to come: after its last whole step, which
    /// is saved. Rows that came behind that are not consumed.
    bool wants_rows() const { return wants_rows_; }

  private:
    /// Steps that are ahead of their reports: the workers' queues never run dry, and never run
    /// away.
    static constexpr std::size_t kMaxStepsAhead = 2;

    struct StepInFlight {
        Progress progress;
        double learning_rate;
        PendingStep pending;
    };

    bool fill_step();
    std::optional<pipeline::RowLease> next_row();
    void check_features(const pipeline::RowLease& row);
    void stop_pipeline();
    void finish_step();
    void report_steps(std::size_t leave_in_flight);
    void evaluate();
    void decode_prompts(bool whatever_it_costs);
    void save();
    void save_last();
    bool save_due();
    void report_saves();
    double elapsed_s() const;

    TrainerParts parts_;
    Progress progress_;
    Step step_;
    std::deque<StepInFlight> in_flight_;
    std::chrono::steady_clock::time_point started_at_;
    double trained_before_s_;
    double last_save_s_;
    StatusBoard::Activity being_written_;  // the save that the writer is at
    bool wants_rows_ = false;
    bool save_waits_ = false;  // one that is due waits for the one before it
    std::optional<std::int64_t> evaluated_step_;
    std::optional<std::int64_t> decoded_step_;
    double last_acceptance_ = 0;
};

}  // namespace dflash::train
