// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/train/schedule.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dflash::train {

double learning_rate(const TrainSettings& settings, double fraction_done) {
    const double done = std::clamp(fraction_done, 0.0, 1.0);
    const double warmup = settings.warmup_fraction;
    const double floor = settings.min_lr_fraction;
    const double rise = warmup > 0 ? std::min(done / warmup, 1.0) : 1.0;
    double fall = 1;
    if (settings.schedule == "cosine") {
        // A warm-up over the whole run leaves nothing to fall.
        const double progress = warmup < 1 ? std::max(done - warmup, 0.0) / (1 - warmup) : 0.0;
        fall = floor + (1 - floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
    } else {
        DFLASH_CHECK(settings.schedule == "wsd", "unknown schedule {}", settings.schedule);
        const double decay = settings.wsd_decay_fraction;
        const double progress = decay > 0 ? std::max(done - (1 - decay), 0.0) / decay : 0.0;
        fall = 1 - (1 - floor) * progress;
    }
    return settings.lr * std::min(rise, fall);
}

}  // namespace dflash::train
