// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/train/feature_judge.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fmt/format.h>
#include <limits>
#include <utility>

namespace dflash::train {
namespace {

/// Above this share of the positions a look is a fault, and below it an oddity of the data: tokens
/// with the same embedding, a sample on which the target overflows.
constexpr double kOddShare = 0.02;
constexpr double kNotFiniteShare = 0.5;

/// Of the positions, at least this share must agree.
constexpr double kAgree = 0.9;

constexpr std::int64_t kFarthestShift = 3;

/// Relative differences of the positions of two [n, H], which may hold what is not finite.
std::vector<double> differences(const at::Tensor& got_nH, const at::Tensor& expected_nH) {
    const at::Tensor error_n = at::linalg_vector_norm(got_nH - expected_nH, 2, {1});
    const at::Tensor norm_n = at::linalg_vector_norm(expected_nH, 2, {1});
    std::vector<double> result;
    for (std::int64_t t = 0; t < got_nH.size(0); ++t) {
        const double error = error_n[t].item<double>();
        const double norm = norm_n[t].item<double>();
        const bool expected_finite = std::isfinite(norm);
        if (!expected_finite && !got_nH[t].isfinite().all().item<bool>()) {
            continue;
        }
        result.push_back(std::isfinite(error) && expected_finite
                             ? error / std::max(norm, 1e-30)
                             : std::numeric_limits<double>::infinity());
    }
    return result;
}

/// The value that kAgree of them do not exceed; 0 for none.
double most_of(std::vector<double> values) {
    if (values.empty()) {
        return 0;
    }
    std::sort(values.begin(), values.end());
    const auto index =
        static_cast<std::size_t>(std::ceil(kAgree * static_cast<double>(values.size())) - 1);
    return values[std::min(index, values.size() - 1)];
}

/// Difference of two stretches of positions, infinite where there are too few to tell.
double difference(const at::Tensor& got_nH, const at::Tensor& expected_nH) {
    const std::int64_t n = std::min(got_nH.size(0), expected_nH.size(0));
    constexpr std::int64_t kFewest = 4;
    return n < kFewest ? std::numeric_limits<double>::infinity()
                       : most_of(differences(got_nH.narrow(0, 0, n), expected_nH.narrow(0, 0, n)));
}

/// `got` against what is expected `shift` positions later.
double shifted_difference(const at::Tensor& got_nH,
                          const at::Tensor& expected_nH,
                          std::int64_t shift) {
    const std::int64_t n = got_nH.size(0) - std::abs(shift);
    if (n < 1) {
        return std::numeric_limits<double>::infinity();
    }
    return difference(got_nH.narrow(0, std::max<std::int64_t>(-shift, 0), n),
                      expected_nH.narrow(0, std::max<std::int64_t>(shift, 0), n));
}

/// The factor that fits best, if `got` is `expected` times it within the tolerance.
std::optional<double> scale_of(const at::Tensor& got_nH,
                               const at::Tensor& expected_nH,
                               double tolerance) {
    const double square = (expected_nH * expected_nH).sum(at::kDouble).item<double>();
    const double product = (got_nH * expected_nH).sum(at::kDouble).item<double>();
    const double factor = product / square;
    if (!std::isfinite(factor) || factor == 0) {
        return std::nullopt;
    }
    return difference(got_nH / factor, expected_nH) <= tolerance ? std::optional(factor)
                                                                 : std::nullopt;
}

class Judge {
  public:
    Judge(const FeatureEvidence& evidence, const std::vector<KnownFeatures>& earlier)
        : e_(evidence), earlier_(earlier), row_(*evidence.row) {
        DFLASH_CHECK(!e_.prefixes.empty(), "no prefix to compare");
    }

    std::optional<Error> run() const {
        for (const auto check : {&Judge::not_finite,
                                 &Judge::zero,
                                 &Judge::repeated,
                                 &Judge::equal_layers,
                                 &Judge::not_recomputed,
                                 &Judge::not_decoded}) {
            if (std::optional<Error> fault = (this->*check)()) {
                return fault;
            }
        }
        return std::nullopt;
    }

  private:
    std::int64_t num_layers() const { return static_cast<std::int64_t>(e_.taps.size()); }

    std::int64_t layer(std::int64_t k) const { return e_.taps[static_cast<std::size_t>(k)]; }

    /// Whether the target alone gives the same within rounding, in this plane.
    bool target_agrees(std::int64_t k) const {
        return std::all_of(e_.prefixes.begin(), e_.prefixes.end(), [&](const FeaturePrefix& p) {
            return most_of(differences(p.in_slot_KnH[k], p.alone_KnH[k])) <= e_.tolerance;
        });
    }

    Error fault(std::int64_t k, std::string what, std::string cause) const {
        return target_agrees(k)
                   ? Error(ErrorKind::Numeric,
                           {.what = std::move(what),
                            .where = where(),
                            .cause = "the target itself computes it, also for the tokens alone; " +
                                     std::move(cause),
                            .hint = "Look for damaged or wrong weights in the target's folder"})
                   : wrong(std::move(what), std::move(cause));
    }

    Error wrong(std::string what, std::string cause) const {
        return {
            ErrorKind::Internal,
            {.what = std::move(what),
             .where = where(),
             .cause = "the target computes something else for these tokens; " + std::move(cause),
             .hint = "Nothing that was learned from such features can be used. Try other "
                     "GPUs, or --gpus cpu:2 for a few steps: where it fails as well this is a "
                     "bug of dflash, else the GPU or its memory is at fault"}};
    }

    std::string where() const { return fmt::format("features of row {}", row_.index); }

    std::optional<Error> not_finite() const {
        for (std::int64_t k = 0; k < num_layers(); ++k) {
            const at::Tensor bad_T = e_.largest_KT[k].isfinite().logical_not();
            const std::int64_t bad = bad_T.sum().item<std::int64_t>();
            if (is_share(bad, row_.num_tokens(), kNotFiniteShare)) {
                return fault(k,
                             fmt::format("features of layer {} are NaN or infinite at {} of {} "
                                         "positions, the first {}",
                                         layer(k),
                                         bad,
                                         row_.num_tokens(),
                                         first(bad_T)),
                             "steps with them are skipped, so nothing would be learned");
            }
        }
        return std::nullopt;
    }

    std::optional<Error> zero() const {
        for (std::int64_t k = 0; k < num_layers(); ++k) {
            const at::Tensor zero_T = e_.largest_KT[k].eq(0);
            const std::int64_t zeros = zero_T.sum().item<std::int64_t>();
            if (is_share(zeros, row_.num_tokens(), kOddShare)) {
                return fault(k,
                             fmt::format("features of layer {} are zero at {} of {} positions, the "
                                         "first {}",
                                         layer(k),
                                         zeros,
                                         row_.num_tokens(),
                                         first(zero_T)),
                             "the drafter would learn without the target's context");
            }
        }
        return std::nullopt;
    }

    /// Positions whose features are those of the position before, though the tokens differ.
    std::optional<Error> repeated() const {
        std::vector<std::int64_t> later;
        for (const data::Document& document : row_.documents) {
            for (std::int64_t t = document.begin + 1; t < document.begin + document.length; ++t) {
                const auto at = static_cast<std::size_t>(t);
                if (row_.tokens[at] != row_.tokens[at - 1]) {
                    later.push_back(t);
                }
            }
        }
        if (later.empty()) {
            return std::nullopt;
        }
        const at::Tensor later_P = at::tensor(later);
        for (std::int64_t k = 0; k < num_layers(); ++k) {
            const at::Tensor same_P = same(k, later_P, k, later_P - 1);
            const std::int64_t count = same_P.sum().item<std::int64_t>();
            if (is_share(count, std::ssize(later), kOddShare)) {
                const std::int64_t place = same_P.to(at::kInt).argmax().item<std::int64_t>();
                return fault(
                    k,
                    fmt::format("features of layer {} are those of the position before at {} of "
                                "{} positions with another token, the first {}",
                                layer(k),
                                count,
                                later.size(),
                                later[static_cast<std::size_t>(place)]),
                    "the drafter could not tell the positions of its context apart");
            }
        }
        return std::nullopt;
    }

    std::optional<Error> equal_layers() const {
        const at::Tensor all_T = at::arange(row_.num_tokens());
        for (std::int64_t k = 1; k < num_layers(); ++k) {
            for (std::int64_t j = 0; j < k; ++j) {
                const std::int64_t count = same(k, all_T, j, all_T).sum().item<std::int64_t>();
                if (is_share(count, row_.num_tokens(), kOddShare)) {
                    return fault(
                        target_agrees(k) ? j : k,
                        fmt::format("features of layer {} equal those of layer {} at {} of "
                                    "{} positions",
                                    layer(k),
                                    layer(j),
                                    count,
                                    row_.num_tokens()),
                        "the drafter would see one layer twice");
                }
            }
        }
        return std::nullopt;
    }

    std::optional<Error> not_recomputed() const {
        for (const FeaturePrefix& prefix : e_.prefixes) {
            for (std::int64_t k = 0; k < num_layers(); ++k) {
                const double off = most_of(differences(prefix.in_slot_KnH[k], prefix.alone_KnH[k]));
                if (off > e_.tolerance) {
                    return name(prefix, k, off);
                }
            }
        }
        return std::nullopt;
    }

    /// Decoding has a path of its own through the target: caches, positions, single tokens.
    std::optional<Error> not_decoded() const {
        if (!e_.decoded) {
            return std::nullopt;
        }
        const DecodedPrefix& decoded = *e_.decoded;
        const std::int64_t all = decoded.features_KdH.size(1);
        for (std::int64_t k = 0; k < num_layers(); ++k) {
            const at::Tensor got_dH = decoded.features_KdH[k];
            const at::Tensor expected_dH = e_.prefixes.front().alone_KnH[k].narrow(0, 0, all);
            const auto off = [&](std::int64_t begin, std::int64_t count) {
                return most_of(differences(got_dH.narrow(0, begin, count),
                                           expected_dH.narrow(0, begin, count)));
            };
            const double prompt = off(0, decoded.prompt);
            if (prompt > e_.tolerance) {
                return decodes_otherwise(
                    fmt::format("layer {} gives other features for a prompt of {} tokens that is "
                                "read into a cache than in a row",
                                layer(k),
                                decoded.prompt),
                    prompt);
            }
            const double behind = off(decoded.prompt, all - decoded.prompt);
            if (behind > e_.tolerance) {
                return decodes_otherwise(
                    fmt::format("layer {} gives other features for {} tokens one by one behind a "
                                "prompt of {} than in a row",
                                layer(k),
                                all - decoded.prompt,
                                decoded.prompt),
                    behind);
            }
        }
        const double step = most_of(differences(decoded.stepped_sH, decoded.extended_sH));
        if (step > e_.tolerance) {
            return decodes_otherwise(
                fmt::format("the decode step gives another residual than a pass over one token, "
                            "behind a prompt of {} tokens",
                            decoded.prompt),
                step);
        }
        return std::nullopt;
    }

    Error decodes_otherwise(std::string what, double off) const {
        return {ErrorKind::Internal,
                {.what = std::move(what),
                 .where = where(),
                 .cause = fmt::format("relative difference {:.2g}, tolerance {:.2g}: positions or "
                                      "cached keys and values are not those of the tokens",
                                      off,
                                      e_.tolerance),
                 .hint = "What the target decodes is not what it would write, so neither answers "
                         "nor acceptance would be right: try other GPUs, or --gpus cpu:2 for a few "
                         "steps; where it fails as well this is a bug of dflash"}};
    }

    /// What the features are instead.
    Error name(const FeaturePrefix& prefix, std::int64_t k, double off) const {
        const at::Tensor got_nH = prefix.in_slot_KnH[k];
        const at::Tensor expected_nH = prefix.alone_KnH[k];
        const std::string figures = fmt::format(
            "relative difference {:.2g} over {} tokens of document {}, tolerance {:.2g}",
            off,
            got_nH.size(0),
            prefix.document,
            e_.tolerance);
        const auto is = [&](double off_by) { return off_by <= e_.tolerance; };
        for (std::int64_t shift = 1; shift <= kFarthestShift; ++shift) {
            for (const std::int64_t by : {shift, -shift}) {
                if (is(shifted_difference(got_nH, expected_nH, by))) {
                    return wrong(
                        fmt::format("features of layer {} are shifted by {} position{}: position t "
                                    "holds those of t {} {}",
                                    layer(k),
                                    shift,
                                    shift == 1 ? "" : "s",
                                    by > 0 ? '+' : '-',
                                    shift),
                        figures);
                }
            }
        }
        for (std::int64_t j = 0; j < num_layers(); ++j) {
            if (j != k && is(difference(got_nH, prefix.alone_KnH[j]))) {
                return wrong(
                    fmt::format("features of layer {} are those of layer {}", layer(k), layer(j)),
                    figures);
            }
        }
        if (const auto factor = scale_of(got_nH, expected_nH, e_.tolerance)) {
            return wrong(fmt::format("features of layer {} are scaled by {:.4g}: norm {:.4g}, "
                                     "expected {:.4g}",
                                     layer(k),
                                     *factor,
                                     mean_norm(got_nH),
                                     mean_norm(expected_nH)),
                         figures);
        }
        for (const FeaturePrefix& other : e_.prefixes) {
            if (other.document != prefix.document && is(difference(got_nH, other.alone_KnH[k]))) {
                return wrong(
                    fmt::format("features of layer {} for document {} of the row are those "
                                "of document {}",
                                layer(k),
                                prefix.document,
                                other.document),
                    figures);
            }
        }
        for (const KnownFeatures& other : earlier_) {
            if (is(difference(got_nH, other.features_KnH[k]))) {
                return wrong(fmt::format("features of layer {} are another row's: those of row {}",
                                         layer(k),
                                         other.row),
                             figures);
            }
        }
        return wrong(fmt::format("features of layer {} are not those of the row's tokens: neither "
                                 "of another position or layer nor scaled; another row's, or "
                                 "overwritten",
                                 layer(k)),
                     figures);
    }

    /// Whether rows of two planes are equal, as far as their norms tell.
    at::Tensor same(std::int64_t k,
                    const at::Tensor& at_P,
                    std::int64_t j,
                    const at::Tensor& of_P) const {
        const at::Tensor norm_P = e_.norm_KT[k].index_select(0, at_P);
        return norm_P.eq(e_.norm_KT[j].index_select(0, of_P))
            .logical_and(
                e_.largest_KT[k].index_select(0, at_P).eq(e_.largest_KT[j].index_select(0, of_P)))
            .logical_and(norm_P.isfinite());
    }

    static bool is_share(std::int64_t count, std::int64_t total, double share) {
        return count > 0 && static_cast<double>(count) > share * static_cast<double>(total);
    }

    static std::int64_t first(const at::Tensor& true_T) {
        return true_T.to(at::kInt).argmax().item<std::int64_t>();
    }

    static double mean_norm(const at::Tensor& values_nH) {
        return at::linalg_vector_norm(values_nH, 2, {1}).mean().item<double>();
    }

    const FeatureEvidence& e_;
    const std::vector<KnownFeatures>& earlier_;
    const data::PackedRow& row_;
};

}  // namespace

double feature_difference(const FeatureEvidence& evidence) {
    double largest = 0;
    for (const FeaturePrefix& prefix : evidence.prefixes) {
        for (std::int64_t k = 0; k < prefix.in_slot_KnH.size(0); ++k) {
            largest =
                std::max(largest, most_of(differences(prefix.in_slot_KnH[k], prefix.alone_KnH[k])));
        }
    }
    return largest;
}

std::optional<Error> judge_features(const FeatureEvidence& evidence,
                                    const std::vector<KnownFeatures>& earlier) {
    return Judge(evidence, earlier).run();
}

}  // namespace dflash::train
