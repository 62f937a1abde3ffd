// SPDX-License-Identifier: Apache-2.0
// The user's commands beside a run: hooks.metrics and hooks.checkpoint.
#pragma once

#include <dflash/report/checkpoint_hook.hpp>
#include <dflash/report/metrics_hook.hpp>
#include <dflash/train/settings.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace dflash::train {

/// Commands whose setting is empty are not there. Members may be called from any thread and never
/// wait, but finish(). After an error finish() is left out: then the commands get a moment.
class RunHooks : NonCopyable {
  public:
    /// Output of the commands is appended to hooks.log in the run folder.
    RunHooks(const HooksSettings& settings, const std::string& run_folder);

    /// A line of metrics.jsonl.
    void metrics(const std::string& line);

    /// A checkpoint is complete in its folder.
    void saved(std::int64_t step, const std::string& folder);

    /// The run is over: hooks.checkpoint gets hooks.wait, hooks.metrics a few seconds.
    void finish();

  private:
    double wait_s_;
    std::optional<report::MetricsHook> metrics_;
    std::optional<report::CheckpointHook> checkpoint_;
};

}  // namespace dflash::train
