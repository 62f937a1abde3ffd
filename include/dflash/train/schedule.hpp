// SPDX-License-Identifier: Apache-2.0
// The learning rate as a function of the fraction of the run that is done, so that a run bounded by
// hours, tokens or epochs has the same shape.
#pragma once

#include <dflash/train/settings.hpp>

namespace dflash::train {

/// Learning rate of a step. `fraction_done` in [0, 1] counts the step's own rows, so the first step
/// of a run with warm-up does not have rate 0. Values outside are taken as 0 or 1.
///
/// Both schedules rise linearly over warmup_fraction. "cosine" then falls to lr x min_lr_fraction
/// along half a cosine; "wsd" stays at lr and falls linearly to it over the last
/// wsd_decay_fraction. Where warm-up and decay of "wsd" overlap the smaller one counts.
double learning_rate(const TrainSettings& settings, double fraction_done);

}  // namespace dflash::train
