// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/eval/greedy_check.hpp>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

namespace dflash::eval {
namespace {

const Lead* lead_at(const DecodedText& text, std::size_t t) {
    return text.leads.empty() ? nullptr : &text.leads[t];
}

/// How far the run's choice leads over `other`; infinite if that is not its second best.
double distance_to(const Lead* lead, TokenId other) {
    if (lead == nullptr || lead->second_token != other) {
        return std::numeric_limits<double>::infinity();
    }
    return static_cast<double>(lead->best) - static_cast<double>(lead->second);
}

/// The larger of the logits of the two choices.
double largest_logit(const Lead* a, const Lead* b) {
    const double floor = -std::numeric_limits<double>::infinity();
    return std::max(a == nullptr ? floor : static_cast<double>(a->best),
                    b == nullptr ? floor : static_cast<double>(b->best));
}

std::string describe(TokenId token, const Lead* lead) {
    return lead == nullptr ? fmt::format("token {}", token)
                           : fmt::format("token {} (logit {:.6g}, before token {} with {:.6g})",
                                         token,
                                         lead->best,
                                         lead->second_token,
                                         lead->second);
}

}  // namespace

double tie_distance(at::ScalarType compute_dtype, double logit) {
    const bool half = compute_dtype == at::kBFloat16 || compute_dtype == at::kHalf;
    return std::abs(logit) * (half ? 0x1p-6 : 0x1p-16);
}

GreedyComparison compare_greedy(std::span<const DecodedText> plain,
                                std::span<const DecodedText> drafted,
                                at::ScalarType compute_dtype,
                                const std::function<std::string(std::int64_t)>& name_of,
                                const LogitDistance& distance_of) {
    DFLASH_CHECK(
        plain.size() == drafted.size(), "{} plain texts, {} drafted", plain.size(), drafted.size());
    GreedyComparison result;
    for (std::size_t i = 0; i < plain.size(); ++i) {
        const DecodedText& a = plain[i];
        const DecodedText& b = drafted[i];
        DFLASH_CHECK(a.id == b.id, "text {} beside text {}", a.id, b.id);
        ++result.texts;
        const std::size_t common = std::min(a.emitted.size(), b.emitted.size());
        std::size_t t = 0;
        for (; t < common && a.emitted[t] == b.emitted[t]; ++t) {
            const Lead* of_a = lead_at(a, t);
            const Lead* of_b = lead_at(b, t);
            if (of_a != nullptr && of_b != nullptr) {
                result.largest_rounding = std::max(
                    result.largest_rounding,
                    std::abs(static_cast<double>(of_a->best) - static_cast<double>(of_b->best)));
            }
        }
        result.tokens += static_cast<std::int64_t>(t);
        if (t == common) {
            DFLASH_CHECK(a.emitted.size() == b.emitted.size(),
                         "text {} has {} tokens plain, {} drafted",
                         a.id,
                         a.emitted.size(),
                         b.emitted.size());
            continue;
        }
        const Lead* of_a = lead_at(a, t);
        const Lead* of_b = lead_at(b, t);
        double distance =
            std::min(distance_to(of_a, b.emitted[t]), distance_to(of_b, a.emitted[t]));
        const double tie = tie_distance(compute_dtype, largest_logit(of_a, of_b));
        if (!(distance <= tie) && distance_of) {
            distance = distance_of(i, t, a.emitted[t], b.emitted[t]);
        }
        if (!(distance <= tie)) {
            throw Error(
                ErrorKind::Internal,
                {.what = fmt::format(
                     "drafted decoding differs from plain decoding at token {}: plain chose {}, "
                     "drafted {}; closer than {:.3g} would be a tie of rounding",
                     t,
                     describe(a.emitted[t], of_a),
                     describe(b.emitted[t], of_b),
                     tie),
                 .where = name_of(a.id),
                 .cause = {},
                 .hint = {}});
        }
        result.ties.push_back(
            {a.id, static_cast<std::int64_t>(t), a.emitted[t], b.emitted[t], distance});
    }
    return result;
}

}  // namespace dflash::eval
