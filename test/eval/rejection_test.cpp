// SPDX-License-Identifier: Apache-2.0
// The rejection test by statistics: 1e5 rounds against the exact distribution. Seeds are fixed, so
// a case passes or fails for good; at a significance of 1e-3 a correct rule fails with one seed of
// a thousand for each comparison, and wrong ones are shown to be far below it.
#include "chi_square.hpp"

#include <dflash/core/random.hpp>
#include <dflash/eval/rejection.hpp>
#include <dflash/target/sampling.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <array>
#include <doctest/doctest.h>

namespace dflash::eval {
namespace {

constexpr std::int64_t kRounds = 100000;
constexpr double kSignificance = 1e-3;
constexpr std::int64_t kDrafts = 3;
constexpr std::int64_t kVocabulary = 12;

/// Logits of the target and of the drafter behind each of kDrafts + 1 and kDrafts tokens, and the
/// rule by which both are made probabilities.
struct Setting {
    at::Tensor p_BV;
    at::Tensor q_DV;

    explicit Setting(const target::Sampling& sampling) {
        at::manual_seed(5);
        const at::Tensor target_BV = at::randn({kDrafts + 1, kVocabulary}) * 1.5;
        const at::Tensor draft_DV =
            target_BV.narrow(0, 0, kDrafts) + at::randn({kDrafts, kVocabulary});
        const std::vector<target::Sampling> rules(kDrafts + 1, sampling);
        p_BV = target::probabilities(target_BV, rules);
        q_DV = target::probabilities(draft_DV, std::span(rules).first(kDrafts));
    }
};

/// Tokens that many rounds emitted at each place behind the anchor.
using Counts = std::array<std::vector<std::int64_t>, kDrafts + 1>;

Counts no_counts() {
    Counts counts;
    counts.fill(std::vector<std::int64_t>(kVocabulary));
    return counts;
}

at::Tensor uniforms(std::uint64_t id, at::IntArrayRef shape) {
    RandomStream stream(/*seed=*/7, Purpose::Test, /*epoch=*/0, id);
    const at::Tensor result = at::empty(shape, at::kFloat);
    std::generate_n(result.data_ptr<float>(), result.numel(), [&] {
        return static_cast<float>(stream.next_u32() >> 8U) * 0x1p-24F;
    });
    return result;
}

at::Tensor draw_drafts(const at::Tensor& q_SDV) {
    const std::int64_t S = q_SDV.size(0);
    return target::draw(q_SDV.reshape({S * kDrafts, kVocabulary}), uniforms(1, {S * kDrafts}))
        .view({S, kDrafts});
}

/// The rule under test.
Counts emitted_by(const Setting& setting, const at::Tensor& num_drafted_S) {
    const at::Tensor q_SDV = setting.q_DV.expand({kRounds, -1, -1});
    const at::Tensor drafted_SD = draw_drafts(q_SDV);
    const DraftVerdict verdict =
        test_drafts({.target_SBV = setting.p_BV.expand({kRounds, -1, -1}),
                     .draft_SDV = q_SDV,
                     .drafted_SD = drafted_SD,
                     .num_drafted_S = num_drafted_S,
                     .test_uniforms_SD = uniforms(2, {kRounds, kDrafts}),
                     .draw_uniforms_SB = uniforms(3, {kRounds, kDrafts + 1})});
    Counts counts = no_counts();
    const auto accepted = verdict.accepted_S.accessor<std::int64_t, 1>();
    const auto next = verdict.next_S.accessor<std::int64_t, 1>();
    const auto drafted = drafted_SD.accessor<std::int64_t, 2>();
    for (std::int64_t s = 0; s < kRounds; ++s) {
        for (std::int64_t k = 0; k <= accepted[s]; ++k) {
            const std::int64_t token = k < accepted[s] ? drafted[s][k] : next[s];
            ++counts[static_cast<std::size_t>(k)][static_cast<std::size_t>(token)];
        }
    }
    return counts;
}

enum class Rule { Right, KeepsAll, DrawsFromTarget, TestsUpsideDown, ForgetsToCut };

/// The rule written down for one number at a time, and wrong ones.
Counts emitted_by_rule(const Setting& setting, Rule rule) {
    RandomStream stream(/*seed=*/8, Purpose::Test, /*epoch=*/0, static_cast<std::uint64_t>(rule));
    const auto p = setting.p_BV.accessor<float, 2>();
    const auto q = setting.q_DV.accessor<float, 2>();
    const auto draw = [&](const std::vector<double>& weights) {
        double sum = 0;
        for (const double weight : weights) {
            sum += weight;
        }
        double left = stream.uniform() * sum;
        std::size_t token = 0;
        while (token + 1 < weights.size() && left >= weights[token]) {
            left -= weights[token++];
        }
        return token;
    };
    Counts counts = no_counts();
    for (std::int64_t s = 0; s < kRounds; ++s) {
        for (std::int64_t k = 0; k <= kDrafts; ++k) {
            std::vector<double> target(kVocabulary);
            std::vector<double> rest(kVocabulary);
            std::vector<double> draft(kVocabulary);
            for (std::int64_t v = 0; v < kVocabulary; ++v) {
                const auto at = static_cast<std::size_t>(v);
                target[at] = p[k][v];
                draft[at] = k < kDrafts ? q[k][v] : 0;
                rest[at] = rule == Rule::ForgetsToCut ? std::abs(target[at] - draft[at])
                                                      : std::max(0.0, target[at] - draft[at]);
            }
            std::vector<std::int64_t>& seen = counts[static_cast<std::size_t>(k)];
            if (k == kDrafts) {
                ++seen[draw(target)];
                break;
            }
            const std::size_t token = draw(draft);
            const double u = stream.uniform();
            const bool keeps = rule == Rule::KeepsAll          ? true
                               : rule == Rule::TestsUpsideDown ? u * target[token] < draft[token]
                                                               : u * draft[token] < target[token];
            if (!keeps) {
                ++seen[draw(rule == Rule::DrawsFromTarget ? target : rest)];
                break;
            }
            ++seen[token];
        }
    }
    return counts;
}

/// The smallest p-value over the places behind the anchor. Whatever was kept before says nothing
/// about the token at a place, so each has the target's distribution there.
double smallest_p_value(const Setting& setting, const Counts& counts) {
    const auto p = setting.p_BV.accessor<float, 2>();
    double smallest = 1;
    for (std::size_t k = 0; k < counts.size(); ++k) {
        std::vector<double> expected;
        for (std::int64_t v = 0; v < kVocabulary; ++v) {
            expected.push_back(p[static_cast<std::int64_t>(k)][v]);
        }
        smallest = std::min(smallest, chi_square_p_value(counts[k], expected));
    }
    return smallest;
}

const std::vector<target::Sampling> kSamplings{
    {.temperature = 1},
    {.temperature = 0.6},
    {.temperature = 1, .top_p = 0.8},
    {.temperature = 1.3, .top_p = 1, .top_k = 4},
    {.temperature = 0.9, .top_p = 0.9, .top_k = 6},
};

TEST_SUITE("eval.rejection") {
    TEST_CASE("the chi-square tail is that of the tables") {
        // Critical values of NIST's table, and the median of two degrees of freedom, 2 ln 2.
        CHECK(chi_square_tail(18.307, 10) == doctest::Approx(0.05).epsilon(1e-3));
        CHECK(chi_square_tail(29.588, 10) == doctest::Approx(0.001).epsilon(1e-3));
        CHECK(chi_square_tail(3.841, 1) == doctest::Approx(0.05).epsilon(1e-3));
        CHECK(chi_square_tail(2 * std::log(2.0), 2) == doctest::Approx(0.5));
    }

    TEST_CASE("emits tokens as the target alone would, with any temperature, top-p and top-k") {
        for (const target::Sampling& sampling : kSamplings) {
            CAPTURE(sampling.temperature);
            CAPTURE(sampling.top_p);
            CAPTURE(sampling.top_k);
            const Setting setting(sampling);
            const at::Tensor all = at::full({kRounds}, kDrafts, at::kLong);
            CHECK(smallest_p_value(setting, emitted_by(setting, all)) > kSignificance);
            // Two, one or no draft: where they end, the next token comes from the target.
            const at::Tensor some = at::arange(kRounds, at::kLong).remainder(kDrafts);
            CHECK(smallest_p_value(setting, emitted_by(setting, some)) > kSignificance);
        }
    }

    TEST_CASE("the statistics tell the rule from wrong ones") {
        for (const target::Sampling& sampling : kSamplings) {
            CAPTURE(sampling.temperature);
            CAPTURE(sampling.top_p);
            CAPTURE(sampling.top_k);
            const Setting setting(sampling);
            const auto p_value = [&](Rule rule) {
                return smallest_p_value(setting, emitted_by_rule(setting, rule));
            };
            CHECK(p_value(Rule::Right) > kSignificance);
            for (const Rule rule : {Rule::KeepsAll,
                                    Rule::DrawsFromTarget,
                                    Rule::TestsUpsideDown,
                                    Rule::ForgetsToCut}) {
                CAPTURE(static_cast<int>(rule));
                CHECK(p_value(rule) < 1e-12);
            }
        }
    }

    TEST_CASE("drafts that were not drawn are kept as often as the target would choose them") {
        const Setting setting({.temperature = 1});
        const at::Tensor drafted_SD =
            tensor::upload(std::vector<std::int64_t>{3, 1, 4}, at::kCPU).expand({kRounds, -1});
        const DraftVerdict verdict =
            test_drafts({.target_SBV = setting.p_BV.expand({kRounds, -1, -1}),
                         .draft_SDV = {},
                         .drafted_SD = drafted_SD,
                         .num_drafted_S = at::full({kRounds}, kDrafts, at::kLong),
                         .test_uniforms_SD = uniforms(2, {kRounds, kDrafts}),
                         .draw_uniforms_SB = uniforms(3, {kRounds, kDrafts + 1})});
        std::vector<std::int64_t> first(kVocabulary);
        for (std::int64_t s = 0; s < kRounds; ++s) {
            const bool kept = verdict.accepted_S[s].item<std::int64_t>() > 0;
            ++first[static_cast<std::size_t>(kept ? 3 : verdict.next_S[s].item<std::int64_t>())];
        }
        std::vector<double> expected;
        for (std::int64_t v = 0; v < kVocabulary; ++v) {
            expected.push_back(setting.p_BV[0][v].item<double>());
        }
        CHECK(chi_square_p_value(first, expected) > kSignificance);
    }

    TEST_CASE("at temperature 0 the drafts are kept that are the target's own choice") {
        const Setting setting({.temperature = 0});
        const std::vector<std::int64_t> best = [&] {
            const at::Tensor argmax = setting.p_BV.argmax(1);
            return std::vector<std::int64_t>(argmax.data_ptr<std::int64_t>(),
                                             argmax.data_ptr<std::int64_t>() + kDrafts + 1);
        }();
        for (std::int64_t wrong = 0; wrong <= kDrafts; ++wrong) {
            CAPTURE(wrong);
            std::vector<std::int64_t> drafted(best.begin(), best.end() - 1);
            if (wrong < kDrafts) {
                auto& draft = drafted[static_cast<std::size_t>(wrong)];
                draft = (draft + 1) % kVocabulary;
            }
            const at::Tensor drafted_SD =
                tensor::upload(std::span(std::as_const(drafted)), at::kCPU).unsqueeze(0);
            const at::Tensor q_SDV =
                at::zeros({1, kDrafts, kVocabulary}).scatter(2, drafted_SD.unsqueeze(2), 1.0);
            for (const at::Tensor& q : {q_SDV, at::Tensor()}) {
                const DraftVerdict verdict =
                    test_drafts({.target_SBV = setting.p_BV.unsqueeze(0),
                                 .draft_SDV = q,
                                 .drafted_SD = drafted_SD,
                                 .num_drafted_S = at::full({1}, kDrafts, at::kLong),
                                 .test_uniforms_SD = uniforms(2, {1, kDrafts}),
                                 .draw_uniforms_SB = uniforms(3, {1, kDrafts + 1})});
                CHECK(verdict.accepted_S.item<std::int64_t>() == wrong);
                CHECK(verdict.next_S.item<std::int64_t>() == best[static_cast<std::size_t>(wrong)]);
            }
        }
    }

    TEST_CASE("equal distributions keep everything, whatever the numbers") {
        Setting setting({.temperature = 1});
        setting.q_DV = setting.p_BV.narrow(0, 0, kDrafts);
        const at::Tensor all = at::full({kRounds}, kDrafts, at::kLong);
        const Counts counts = emitted_by(setting, all);
        std::int64_t last = 0;
        for (const std::int64_t count : counts.back()) {
            last += count;
        }
        CHECK(last == kRounds);
    }
}

}  // namespace
}  // namespace dflash::eval
