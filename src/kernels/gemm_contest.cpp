// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/kernels/gemm_contest.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace dflash::kernels {
namespace {

constexpr std::size_t kTurns = 5;  // of the finalists
constexpr std::size_t kMostRivals = 2;

// A visit is long enough that an event's half microsecond is nothing in it; products of more than a
// few ms are long enough alone.
constexpr double kVisitMs = 0.4;
constexpr int kFewestCalls = 2;
constexpr int kMostCalls = 32;
constexpr double kLongMs = 2;

// Once the first results are read the chip has stood still for a moment.
constexpr double kSecondLeadMs = 20;

int calls_for(double total_ms, double call_ms, int fewest, int most) {
    const double calls = std::ceil(total_ms / std::max(call_ms, 1e-3));
    return std::clamp(static_cast<int>(std::min(calls, 1e6)), fewest, most);
}

int calls_of_visit(const GemmContest& contest) {
    return contest.expected_ms > kLongMs
               ? 1
               : calls_for(kVisitMs, contest.expected_ms, kFewestCalls, kMostCalls);
}

GemmVisit lead(const std::vector<GemmContest>& contests, double ms) {
    // By the first of the classes, which is the largest.
    return {0, 0, calls_for(ms, contests.front().expected_ms, 1, 100'000)};
}

/// The algorithms that seemed faster than the guess, the best first, and the guess before them.
std::vector<std::size_t> finalists(const std::vector<double>& ms) {
    std::vector<std::size_t> order(ms.size() - 1);
    std::iota(order.begin(), order.end(), std::size_t{1});
    std::stable_sort(
        order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return ms[a] < ms[b]; });
    std::vector<std::size_t> result{0};
    for (const std::size_t algorithm : order) {
        // Half of the margin: one turn alone is not exact.
        if (result.size() <= kMostRivals && ms[algorithm] < ms[0] * (1 - kGemmMargin / 2)) {
            result.push_back(algorithm);
        }
    }
    return result;
}

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

/// `ms`: of the finalists, [turn][place in the list].
GemmVerdict judge(const std::vector<std::size_t>& list,
                  const std::vector<std::vector<double>>& ms) {
    const auto times_of = [&](std::size_t place) {
        std::vector<double> times;
        for (const std::vector<double>& turn : ms) {
            times.push_back(turn[place]);
        }
        return times;
    };
    GemmVerdict verdict;
    verdict.guess_ms = median(times_of(0));
    verdict.ms = verdict.guess_ms;
    double best = 1 - kGemmMargin;
    for (std::size_t place = 1; place < list.size(); ++place) {
        std::vector<double> ratios;
        for (const std::vector<double>& turn : ms) {
            ratios.push_back(turn[place] / turn[0]);
        }
        const double ratio = median(ratios);
        if (ratio <= best && *std::max_element(ratios.begin(), ratios.end()) < 1) {
            best = ratio;
            verdict.algorithm = list[place];
            verdict.ms = median(times_of(place));
        }
    }
    return verdict;
}

std::vector<double> run_all(const RunGemmVisits& run, const std::vector<GemmVisit>& visits) {
    std::vector<double> ms = run(visits);
    DFLASH_CHECK(ms.size() == visits.size(), "{} times of {} visits", ms.size(), visits.size());
    return ms;
}

}  // namespace

std::vector<GemmVerdict> hold_contests(const std::vector<GemmContest>& contests,
                                       double lead_ms,
                                       const RunGemmVisits& run) {
    if (contests.empty()) {
        return {};
    }
    std::vector<GemmVisit> visits{lead(contests, lead_ms)};
    for (std::size_t c = 0; c < contests.size(); ++c) {
        DFLASH_CHECK(contests[c].num_algorithms > 0, "a contest of no algorithms");
        for (std::size_t a = 0; a < contests[c].num_algorithms; ++a) {
            visits.push_back({c, a, calls_of_visit(contests[c])});
        }
    }
    const std::vector<double> first = run_all(run, visits);

    std::vector<GemmVerdict> verdicts(contests.size());
    std::vector<std::vector<std::size_t>> lists(contests.size());
    std::size_t at = 1;
    visits.assign(1, lead(contests, std::min(lead_ms, kSecondLeadMs)));
    for (std::size_t c = 0; c < contests.size(); ++c) {
        const std::vector<double> ms(
            first.begin() + static_cast<std::ptrdiff_t>(at),
            first.begin() + static_cast<std::ptrdiff_t>(at + contests[c].num_algorithms));
        at += contests[c].num_algorithms;
        verdicts[c] = {0, ms[0], ms[0]};
        lists[c] = finalists(ms);
        for (std::size_t turn = 0; turn < kTurns && lists[c].size() > 1; ++turn) {
            for (std::size_t i = 0; i < lists[c].size(); ++i) {
                // Another begins every turn: what comes before a visit is not always the same.
                visits.push_back(
                    {c, lists[c][(i + turn) % lists[c].size()], calls_of_visit(contests[c])});
            }
        }
    }
    if (visits.size() == 1) {
        return verdicts;
    }
    const std::vector<double> second = run_all(run, visits);
    at = 1;
    for (std::size_t c = 0; c < contests.size(); ++c) {
        const std::size_t size = lists[c].size();
        if (size == 1) {
            continue;
        }
        std::vector<std::vector<double>> ms(kTurns, std::vector<double>(size));
        for (std::size_t turn = 0; turn < kTurns; ++turn) {
            for (std::size_t i = 0; i < size; ++i) {
                ms[turn][(i + turn) % size] = second[at++];
            }
        }
        verdicts[c] = judge(lists[c], ms);
    }
    return verdicts;
}

}  // namespace dflash::kernels
