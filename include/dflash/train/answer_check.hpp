// SPDX-License-Identifier: Apache-2.0
// Are these the target's answers? A drafter learns to guess what its target writes, so answers of
// another model, or of another way of sampling, teach it the wrong thing. Before a new run some
// answers of the data are compared with answers that the target gives to the same questions.
#pragma once

#include <dflash/train/prepared_run.hpp>
#include <dflash/train/status_board.hpp>
#include <dflash/train/stop_signals.hpp>
#include <dflash/train/whereabouts.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace dflash::train {

class Watchdog;

/// Of two kinds of answers to the same questions, how many of their tokens are those that the
/// target finds the likeliest after what stands before them.
struct AnswerShares {
    std::int64_t rows = 0;
    std::int64_t tokens = 0;      ///< of the data's answers
    std::int64_t likeliest = 0;   ///< of these
    std::int64_t own_tokens = 0;  ///< of the target's answers
    std::int64_t own_likeliest = 0;

    double share() const;
    double own_share() const;

    /// More than 15 points below its own. Never where there is nothing to compare.
    bool foreign() const;
};

/// Compares up to data.check_answers rows, spread evenly over the data, by the first tokens of
/// their answers, on the first device; stops early after some time, or where a stop is asked for.
/// Nothing if it is turned off, there is no row with an answer of its own, or the whole target does
/// not fit the device. Logs what it found: one line, or a warning with the command that answers the
/// rows anew and its hours.
std::optional<AnswerShares> check_answers(const PreparedRun& run,
                                          const Settings& settings,
                                          Whereabouts& whereabouts,
                                          Watchdog& watchdog,
                                          StatusBoard& board,
                                          const StopSignals& signals);

}  // namespace dflash::train
