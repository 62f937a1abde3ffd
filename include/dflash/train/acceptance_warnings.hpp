// SPDX-License-Identifier: Apache-2.0
// Where real decoding and the forward of training disagree by more than they may.
#pragma once

#include <dflash/eval/teacher_forced.hpp>

#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

/// Real decoding and the forward of training see the same features, so they may differ by the
/// rounding of near ties only: in fewer rounds than this share.
inline constexpr double kRoundsByRounding = 0.05;

/// On the data's own answers the expected acceptance is that of a target which would have written
/// them. A target that writes otherwise is easier or harder to draft for; below this share of the
/// expectation it is more than that.
inline constexpr double kLeastOfAnswers = 0.7;

/// Sentences. `tau` of real decoding, `agreement` of its rounds with training's forward on the same
/// texts, `answers_tau` of that forward on the data's own answers (TeacherForcedSums::walked_tau).
std::vector<std::string> acceptance_warnings(double tau,
                                             const eval::RoundAgreement& agreement,
                                             std::optional<double> answers_tau);

}  // namespace dflash::train
