// SPDX-License-Identifier: Apache-2.0
// What a run tells: metrics.jsonl and TensorBoard for programs, lines for people.
#pragma once

#include <dflash/pipeline/pipeline.hpp>
#include <dflash/report/metrics_log.hpp>
#include <dflash/report/tensorboard.hpp>
#include <dflash/train/checkpoint_writer.hpp>
#include <dflash/train/evaluator.hpp>
#include <dflash/train/numeric_policy.hpp>
#include <dflash/train/progress.hpp>
#include <dflash/train/run_hooks.hpp>
#include <dflash/train/run_warnings.hpp>
#include <dflash/train/settings.hpp>
#include <dflash/train/step.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dflash::train {

/// How far a run was, and what its pipeline had counted.
struct Moment {
    Progress progress;
    pipeline::PipelineStats pipeline;
};

/// Used by the training loop's thread.
class RunReport {
  public:
    /// Opens the files of a run folder; what they hold of steps after `resumed_step` is cut.
    RunReport(const std::string& folder,
              std::int64_t resumed_step,
              const Settings& settings,
              NumericPolicy numeric_policy);

    /// One step: a line in metrics.jsonl, a point in TensorBoard, and a line on the screen when
    /// report.every has passed. A skipped step is a warning; throws Error{Numeric} when there are
    /// too many.
    void step(const Progress& progress,
              const StepReport& step,
              double learning_rate,
              const pipeline::PipelineStats& pipeline,
              double fraction_done);

    /// One evaluation. Throws Error{Numeric} if its loss is not finite.
    void evaluation(const Progress& progress, const EvalResult& result);

    /// What is otherwise from `step` on than before it: a line of kind "resume" in metrics.jsonl,
    /// none if nothing is.
    void changed(std::int64_t step, const std::vector<std::string>& changes);

    void saved(const SaveReport& save);

    /// Metrics and saves go to the hooks, too, which must outlive this object.
    void set_hooks(RunHooks& hooks);

    /// The end of a run: loss curve, held-out accuracy by slot beside the bigram table's, where the
    /// files lie.
    void summary(const Progress& progress, const std::string& folder);

  private:
    report::MetricsLog metrics_;
    report::TensorBoardLog tensorboard_;
    Settings settings_;
    RunHooks* hooks_ = nullptr;
    std::vector<std::pair<double, double>> loss_curve_;  // (step, loss)
    std::vector<std::pair<std::int64_t, EvalResult>> evaluations_;
    std::optional<Moment> last_step_;
    std::optional<Moment> last_line_;
    std::optional<std::chrono::steady_clock::time_point> last_line_at_;
    NumericPolicy numeric_policy_;
    LossWatch loss_watch_;
    SpeedWatch speed_watch_;
};

}  // namespace dflash::train
