// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/text.hpp>
#include <dflash/train/acceptance_warnings.hpp>

#include <fmt/format.h>

namespace dflash::train {

std::vector<std::string> acceptance_warnings(double tau,
                                             const eval::RoundAgreement& agreement,
                                             std::optional<double> answers_tau) {
    std::vector<std::string> warnings;
    const std::int64_t other = agreement.rounds - agreement.equal;
    if (static_cast<double>(other) > kRoundsByRounding * static_cast<double>(agreement.rounds)) {
        warnings.push_back(fmt::format(
            "{} of {} rounds kept another number of drafts than the forward of training has right "
            "on the same text, more than the {:.0f} % that rounding explains: decoding and "
            "training do not see the same features (layers, positions or mask token)",
            format_count(other),
            format_count(agreement.rounds),
            100 * kRoundsByRounding));
    }
    if (answers_tau && tau < kLeastOfAnswers * *answers_tau) {
        warnings.push_back(fmt::format(
            "on the data's own answers the drafter is right for a tau of {:.2f}, but real decoding "
            "has {:.2f}, less than {:.0f} % of it: either the answers are not the target's own, or "
            "the prompts are rendered otherwise than the answers were made for",
            *answers_tau,
            tau,
            100 * kLeastOfAnswers));
    }
    return warnings;
}

}  // namespace dflash::train
