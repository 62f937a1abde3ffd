// SPDX-License-Identifier: Apache-2.0
// Which of several algorithms is the fastest in a steady load, without a word about GPUs.
//
// A step of training is limited by power, so the chip's clock in it is not the clock that it has
// for a millisecond after a pause, and the algorithm that is the fastest then need not be the
// fastest in a step. So nothing is timed by itself: a queue of products without a gap begins with
// some that only heat up, and the algorithms of a class then take turns, so that all see the same
// clock.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace dflash::kernels {

/// The algorithms of one class of products. The first is cuBLASLt's guess.
struct GemmContest {
    std::size_t num_algorithms = 0;
    double expected_ms = 0;  ///< of one product, roughly
};

/// Calls of one algorithm, one behind the other, that are timed together.
struct GemmVisit {
    std::size_t contest = 0;
    std::size_t algorithm = 0;
    int calls = 1;

    bool operator==(const GemmVisit&) const = default;
};

/// Makes all visits without a gap between them, and says how many ms a call of each took.
using RunGemmVisits = std::function<std::vector<double>(const std::vector<GemmVisit>&)>;

struct GemmVerdict {
    std::size_t algorithm = 0;  ///< the fastest, or 0: none is clearly faster than the guess
    double ms = 0;              ///< of that algorithm
    double guess_ms = 0;        ///< of the guess at the same time
};

/// By how much an algorithm must be faster than the guess, as a share of its time: more than two
/// turns of the same one differ by.
inline constexpr double kGemmMargin = 0.02;

/// A verdict for each contest. `lead_ms`: for how long to heat up first.
///
/// One turn of all algorithms shows which of them may be faster than the guess; the best two of
/// those then take turns with it. One of them wins if it was faster in every turn, and by the
/// margin in the middle one of the turns' ratios.
std::vector<GemmVerdict> hold_contests(const std::vector<GemmContest>& contests,
                                       double lead_ms,
                                       const RunGemmVisits& run);

}  // namespace dflash::kernels
