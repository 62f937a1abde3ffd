// SPDX-License-Identifier: Apache-2.0
// What evaluations between the start and the end of a run may cost.
#pragma once

namespace dflash::train {

/// Judging the held-out rows and really decoding prompts share eval.max_fraction of the time. Where
/// a run does both, judging, which comes more often, has half of it at most, so that the rest adds
/// up until it pays for decoding. All times are in seconds.
struct EvalBudget {
    double max_fraction = 0;
    bool decodes = false;
    double judged_s = 0;   ///< spent on held-out rows
    double decoded_s = 0;  ///< spent on real decoding

    bool allows_judging(double trained_s) const {
        const double most_s = max_fraction * trained_s;
        return judged_s + decoded_s <= most_s && judged_s <= (decodes ? 0.5 : 1) * most_s;
    }

    /// At a cost of `cost_s`.
    bool allows_decoding(double trained_s, double cost_s) const {
        return judged_s + decoded_s + cost_s <= max_fraction * trained_s;
    }
};

}  // namespace dflash::train
