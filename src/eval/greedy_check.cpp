// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/eval/greedy_check.hpp>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <optional>

namespace dflash::eval {
namespace {

/// How far the run's choice leads over `other`, if that is its second best.
std::optional<double> distance_to(const Lead& lead, TokenId other) {
    if (lead.second_token != other) {
        return std::nullopt;
    }
    return static_cast<double>(lead.best) - static_cast<double>(lead.second);
}

std::string describe(TokenId token, const Lead& lead) {
    return fmt::format("token {} (logit {:.6g}, before token {} with {:.6g})",
                       token,
                       lead.best,
                       lead.second_token,
                       lead.second);
}

}  // namespace

double tie_distance(at::ScalarType compute_dtype, double logit) {
    const bool half = compute_dtype == at::kBFloat16 || compute_dtype == at::kHalf;
    return std::abs(logit) * (half ? 0x1p-6 : 0x1p-16);
}

GreedyComparison compare_greedy(std::span<const DecodedText> plain,
                                std::span<const DecodedText> drafted,
                                at::ScalarType compute_dtype,
                                const std::function<std::string(std::int64_t)>& name_of) {
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
            result.largest_rounding = std::max(result.largest_rounding,
                                               std::abs(static_cast<double>(a.leads[t].best) -
                                                        static_cast<double>(b.leads[t].best)));
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
        const std::optional<double> from_plain = distance_to(a.leads[t], b.emitted[t]);
        const std::optional<double> from_drafted = distance_to(b.leads[t], a.emitted[t]);
        const double distance =
            std::min(from_plain.value_or(std::numeric_limits<double>::infinity()),
                     from_drafted.value_or(std::numeric_limits<double>::infinity()));
        const double tie = tie_distance(compute_dtype, std::max(a.leads[t].best, b.leads[t].best));
        if (!(distance <= tie)) {
            throw Error(
                ErrorKind::Internal,
                {.what = fmt::format(
                     "drafted decoding differs from plain decoding at token {}: plain chose {}, "
                     "drafted {}; closer than {:.3g} would be a tie of rounding",
                     t,
                     describe(a.emitted[t], a.leads[t]),
                     describe(b.emitted[t], b.leads[t]),
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
