// SPDX-License-Identifier: Apache-2.0
#include <dflash/train/run_hooks.hpp>

namespace dflash::train {
namespace {

/// What hooks.metrics gets at the end to pass on what it has.
constexpr double kMetricsWait = 10;

}  // namespace

RunHooks::RunHooks(const HooksSettings& settings, const std::string& run_folder)
    : wait_s_(settings.wait.seconds) {
    const std::string output = run_folder + "/hooks.log";
    if (!settings.metrics.empty()) {
        metrics_.emplace(settings.metrics, output);
    }
    if (!settings.checkpoint.empty()) {
        checkpoint_.emplace(settings.checkpoint, output);
    }
}

void RunHooks::metrics(const std::string& line) {
    if (metrics_) {
        metrics_->write(line);
    }
}

void RunHooks::saved(std::int64_t step, const std::string& folder) {
    if (checkpoint_) {
        checkpoint_->saved(step, folder);
    }
}

void RunHooks::finish() {
    if (checkpoint_) {
        checkpoint_->finish(wait_s_);
    }
    if (metrics_) {
        metrics_->finish(kMetricsWait);
    }
}

}  // namespace dflash::train
