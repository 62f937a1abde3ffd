// SPDX-License-Identifier: Apache-2.0
// What a run tells: metrics.jsonl and TensorBoard for programs, lines and the live status for
// people.
#pragma once

#include <dflash/pipeline/pipeline.hpp>
#include <dflash/report/metrics_log.hpp>
#include <dflash/report/tensorboard.hpp>
#include <dflash/train/acceptance_evaluator.hpp>
#include <dflash/train/checkpoint_writer.hpp>
#include <dflash/train/evaluator.hpp>
#include <dflash/train/numeric_policy.hpp>
#include <dflash/train/progress.hpp>
#include <dflash/train/run_hooks.hpp>
#include <dflash/train/run_warnings.hpp>
#include <dflash/train/settings.hpp>
#include <dflash/train/status_board.hpp>
#include <dflash/train/step.hpp>
#include <dflash/train/time_left.hpp>

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace dflash::train {

/// How far a run was, and what its pipeline had counted.
struct Moment {
    Progress progress;
    pipeline::PipelineStats pipeline;
};

/// Speeds, and the shares of time in which a side waited, between two moments of a run.
struct Rates {
    double drafter_tokens_per_s = 0;
    double target_tokens_per_s = 0;
    double drafter_waited = 0;
    double target_waited = 0;
};

/// Used by the training loop's thread.
class RunReport {
  public:
    /// Opens the files of a run folder; what they hold of steps after `resumed_step` is cut.
    /// `board` must outlive this object.
    RunReport(const std::string& folder,
              std::int64_t resumed_step,
              const Settings& settings,
              NumericPolicy numeric_policy,
              StatusBoard& board);

    /// One step: a line in metrics.jsonl, a point in TensorBoard, the live status, and a line on
    /// the screen when report.line_every has passed. A skipped step is a warning; throws
    /// Error{Numeric} when there are too many.
    void step(const Progress& progress,
              const StepReport& step,
              double learning_rate,
              const pipeline::PipelineStats& pipeline,
              double fraction_done);

    /// One evaluation. Throws Error{Numeric} if its loss is not finite.
    void evaluation(const Progress& progress, const EvalResult& result);

    /// Real decoding of held-out prompts. Warns once where it disagrees with training's forward.
    void acceptance(const Progress& progress, const AcceptanceResult& result);

    /// The last step whose drafter decoded; in this run, whatever process it was.
    std::optional<std::int64_t> decoded_step() const { return decoded_step_; }

    /// What is otherwise from `step` on than before it: a line of kind "resume" in metrics.jsonl,
    /// none if nothing is.
    void changed(std::int64_t step, const std::vector<std::string>& changes);

    void saved(const SaveReport& save);

    /// What counts rows and waits has been made anew: speeds are of what follows.
    void begins_anew();

    /// Metrics and saves go to the hooks, too, which must outlive this object.
    void set_hooks(RunHooks& hooks);

    /// Where the run says what it does: `auto saving = report.board().enter(...)`.
    StatusBoard& board() { return board_; }

    /// The end of a run: loss curve, held-out accuracy by slot beside the bigram table's, where the
    /// files lie.
    void summary(const Progress& progress, const std::string& folder);

  private:
    using Clock = std::chrono::steady_clock;

    void read_decodings(const std::string& path);

    /// Speeds over intervals of `every_s`; until the first one has passed, over what there is of
    /// it.
    struct Interval {
        double every_s;
        std::optional<Moment> since;
        std::optional<Clock::time_point> renewed_at;
        Rates rates;
        bool whole = false;

        /// Whether the rates were renewed.
        bool pass(const Moment& now);
    };

    report::MetricsLog metrics_;
    report::TensorBoardLog tensorboard_;
    Settings settings_;
    RunHooks* hooks_ = nullptr;
    std::vector<std::pair<double, double>> loss_curve_;  // (step, loss)
    std::vector<std::pair<std::int64_t, EvalResult>> evaluations_;
    std::vector<std::pair<std::int64_t, AcceptanceResult>> decodings_;
    std::optional<std::int64_t> decoded_step_;
    std::optional<double> first_tau_;  // at step 0
    std::set<std::string> told_;       // endings of warnings about decoding
    StatusBoard& board_;
    std::optional<Moment> last_step_;
    Interval figures_;
    Interval line_;
    TimeLeft time_left_;
    NumericPolicy numeric_policy_;
    LossWatch loss_watch_;
    SpeedWatch speed_watch_;
};

}  // namespace dflash::train
