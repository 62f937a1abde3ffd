// SPDX-License-Identifier: Apache-2.0
// Pearson's chi-square test of counts against a distribution.
#pragma once

#include <cmath>
#include <cstdint>
#include <doctest/doctest.h>
#include <vector>

namespace dflash::eval {

/// Probability that chi-square with k degrees of freedom is at least x: the regularised upper
/// incomplete gamma function Q(k/2, x/2), by its series (Abramowitz and Stegun 6.5.29) or, far
/// out, by Lentz's continued fraction (6.5.31).
inline double chi_square_tail(double x, double k) {
    const double a = k / 2;
    const double z = x / 2;
    if (z <= 0) {
        return 1;
    }
    const double front = std::exp(a * std::log(z) - z - std::lgamma(a));
    if (z < a + 1) {
        double term = 1 / a;
        double sum = term;
        for (int n = 1; n < 10000 && term > sum * 1e-16; ++n) {
            term *= z / (a + n);
            sum += term;
        }
        return 1 - front * sum;
    }
    double b = z + 1 - a;
    double c = 1e300;
    double d = 1 / b;
    double h = d;
    for (int n = 1; n < 10000; ++n) {
        const double an = -n * (n - a);
        b += 2;
        d = 1 / (an * d + b);
        c = b + an / c;
        const double step = d * c;
        h *= step;
        if (std::abs(step - 1) < 1e-15) {
            break;
        }
    }
    return front * h;
}

/// The p-value of counts under `expected` probabilities. Tokens of probability 0 must not occur
/// (p-value 0 if one does); those that are expected fewer than five times are counted together.
inline double chi_square_p_value(const std::vector<std::int64_t>& counts,
                                 const std::vector<double>& expected) {
    double total = 0;
    for (const std::int64_t count : counts) {
        total += static_cast<double>(count);
    }
    double statistic = 0;
    double rare_seen = 0;
    double rare_expected = 0;
    int cells = 0;
    const auto add = [&](double seen, double wanted) {
        statistic += (seen - wanted) * (seen - wanted) / wanted;
        ++cells;
    };
    for (std::size_t i = 0; i < counts.size(); ++i) {
        const auto seen = static_cast<double>(counts[i]);
        const double wanted = total * expected[i];
        if (expected[i] == 0 && counts[i] > 0) {
            return 0;
        }
        if (wanted < 5) {
            rare_seen += seen;
            rare_expected += wanted;
        } else {
            add(seen, wanted);
        }
    }
    if (rare_expected > 0) {
        add(rare_seen, rare_expected);
    }
    return chi_square_tail(statistic, cells - 1);
}

}  // namespace dflash::eval
