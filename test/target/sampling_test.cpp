// SPDX-License-Identifier: Apache-2.0
#include <dflash/target/sampling.hpp>

#include <ATen/ATen.h>
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <numeric>
#include <set>
#include <vector>

namespace dflash::target {
namespace {

// By sorting, in double: the definition, one row at a time.
std::vector<double> by_definition(const at::Tensor& logits_V, const Sampling& rule) {
    const at::Tensor host = logits_V.to(at::kDouble).contiguous();
    std::vector<double> logits(host.const_data_ptr<double>(),
                               host.const_data_ptr<double>() + host.numel());
    std::vector<double> probability(logits.size(), 0.0);
    if (rule.greedy()) {
        const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
        probability[static_cast<std::size_t>(best)] = 1;
        return probability;
    }
    std::vector<double> sorted = logits;
    std::sort(sorted.rbegin(), sorted.rend());
    const auto k = static_cast<std::size_t>(rule.top_k);
    const double edge = k > 0 && k < sorted.size() ? sorted[k - 1] : sorted.back();
    double sum = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        probability[i] =
            logits[i] < edge ? 0 : std::exp((logits[i] - sorted.front()) / rule.temperature);
        sum += probability[i];
    }
    std::vector<double> falling = probability;
    std::sort(falling.rbegin(), falling.rend());
    double held = 0;
    double smallest = 0;
    for (const double p : falling) {
        if (rule.top_p < 1 && held >= rule.top_p * sum) {
            break;
        }
        held += p;
        smallest = p;
    }
    sum = 0;
    for (double& p : probability) {
        p = p < smallest ? 0 : p;
        sum += p;
    }
    for (double& p : probability) {
        p /= sum;
    }
    return probability;
}

const std::vector<Sampling> kRules = {
    {},
    {.temperature = 1},
    {.temperature = 0.3},
    {.temperature = 2.5},
    {.temperature = 0.8, .top_k = 1},
    {.temperature = 0.8, .top_k = 7},
    {.temperature = 0.8, .top_k = 100000},
    {.temperature = 1, .top_p = 0.9},
    {.temperature = 1, .top_p = 0.001},
    {.temperature = 0.6, .top_p = 0.95, .top_k = 20},
    {.temperature = 1.5, .top_p = 0.5, .top_k = 3},
};

}  // namespace

TEST_SUITE("target.sampling") {
    TEST_CASE("probabilities: agree with the definition, for each rule alone and all mixed") {
        at::manual_seed(3);
        const at::Tensor logits_RV = 3 * at::randn({static_cast<std::int64_t>(kRules.size()), 997});
        const at::Tensor mixed_RV = probabilities(logits_RV, kRules);
        for (std::size_t r = 0; r < kRules.size(); ++r) {
            CAPTURE(r);
            const auto row = static_cast<std::int64_t>(r);
            const at::Tensor alone_1V =
                probabilities(logits_RV.narrow(0, row, 1), std::vector<Sampling>{kRules[r]});
            const std::vector<double> expected = by_definition(logits_RV[row], kRules[r]);
            for (std::size_t i = 0; i < expected.size(); ++i) {
                CAPTURE(i);
                const auto id = static_cast<std::int64_t>(i);
                for (const at::Tensor& got : {mixed_RV[row], alone_1V[0]}) {
                    const auto p = static_cast<double>(got[id].item<float>());
                    // What is left out is left out exactly.
                    REQUIRE((p == 0) == (expected[i] == 0));
                    REQUIRE(p == doctest::Approx(expected[i]).epsilon(2e-5));
                }
            }
        }
    }

    TEST_CASE("probabilities: greedy takes the smallest id of equal logits") {
        at::Tensor logits_1V = at::zeros({1, 300});
        logits_1V[0][41] = 2.0;
        logits_1V[0][42] = 2.0;
        logits_1V[0][299] = 2.0;
        const at::Tensor p = probabilities(logits_1V, std::vector<Sampling>{{}});
        CHECK(p[0][41].item<float>() == 1.0F);
        CHECK(p.sum().item<float>() == 1.0F);
        const SamplingRules rules(std::vector<Sampling>{{}}, at::kCPU);
        CHECK(rules.choose(logits_1V, {}).item<std::int64_t>() == 41);
    }

    TEST_CASE("probabilities: tokens as probable as the last one that is kept are kept") {
        at::Tensor logits_1V = at::zeros({1, 10});
        logits_1V[0][0] = 5.0;
        for (const Sampling& rule : {Sampling{.temperature = 1, .top_p = 1, .top_k = 2},
                                     Sampling{.temperature = 1, .top_p = 0.95, .top_k = 0},
                                     Sampling{.temperature = 1, .top_p = 0.95, .top_k = 2}}) {
            const at::Tensor p = probabilities(logits_1V, std::vector<Sampling>{rule});
            CHECK((p > 0).sum().item<std::int64_t>() == 10);
        }
    }

    TEST_CASE("draw: inverts the distribution function and never gives what is impossible") {
        const at::Tensor p_RV = at::tensor({0.0, 0.25, 0.0, 0.5, 0.25, 0.0}, at::kFloat)
                                    .unsqueeze(0)
                                    .expand({6, 6})
                                    .contiguous();
        const std::vector<float> uniforms = {0.0F, 0.2499F, 0.25F, 0.7499F, 0.75F, 0x1.fffffep-1F};
        const at::Tensor drawn = draw(p_RV, uniforms);
        const std::vector<std::int64_t> expected = {1, 1, 3, 3, 4, 4};
        for (std::size_t r = 0; r < expected.size(); ++r) {
            CAPTURE(r);
            CHECK(drawn[static_cast<std::int64_t>(r)].item<std::int64_t>() == expected[r]);
        }
    }

    TEST_CASE("draw: tokens come as often as their probability says") {
        at::manual_seed(5);
        constexpr std::int64_t kVocab = 40;
        constexpr std::int64_t kDraws = 100000;
        const at::Tensor logits_1V = at::randn({1, kVocab});
        const Sampling rule{.temperature = 0.9, .top_p = 0.9, .top_k = 25};
        const at::Tensor p_1V = probabilities(logits_1V, std::vector<Sampling>{rule});
        std::vector<float> uniforms;
        for (std::int64_t i = 0; i < kDraws; ++i) {
            uniforms.push_back(sampling_uniform(11, 22, i));
        }
        const at::Tensor counts =
            draw(p_1V.expand({kDraws, kVocab}), uniforms).bincount({}, kVocab);
        double chi_square = 0;
        int kinds = 0;
        for (std::int64_t i = 0; i < kVocab; ++i) {
            const double wanted = p_1V[0][i].item<double>() * static_cast<double>(kDraws);
            const auto got = static_cast<double>(counts[i].item<std::int64_t>());
            if (wanted == 0) {
                CHECK(got == 0);
                continue;
            }
            ++kinds;
            chi_square += (got - wanted) * (got - wanted) / wanted;
        }
        REQUIRE(kinds > 5);
        // The mean of chi-square is kinds - 1, its deviation sqrt(2 (kinds - 1)).
        CHECK(chi_square < kinds - 1 + 5 * std::sqrt(2.0 * (kinds - 1)));
    }

    TEST_CASE("draw: a row's token does not depend on the rows beside it") {
        at::manual_seed(9);
        const at::Tensor logits_RV = at::randn({5, 1000});
        const std::vector<Sampling> rules(5, {.temperature = 1, .top_p = 0.9, .top_k = 50});
        std::vector<float> uniforms;
        for (std::int64_t r = 0; r < 5; ++r) {
            uniforms.push_back(sampling_uniform(1, static_cast<std::uint64_t>(r), 17));
        }
        const at::Tensor together = draw(probabilities(logits_RV, rules), uniforms);
        for (std::int64_t r = 0; r < 5; ++r) {
            const at::Tensor alone =
                draw(probabilities(logits_RV.narrow(0, r, 1), std::vector<Sampling>{rules[0]}),
                     std::vector<float>{uniforms[static_cast<std::size_t>(r)]});
            CHECK(alone.item<std::int64_t>() == together[r].item<std::int64_t>());
        }
    }

    TEST_CASE("sampling_uniform: depends on seed, sequence and position, and is below 1") {
        std::set<float> seen;
        for (const std::uint64_t seed : {0U, 1U}) {
            for (const std::uint64_t sequence : {0U, 1U, 77U}) {
                for (const std::int64_t position : {0, 1, 2, 4000}) {
                    const float u = sampling_uniform(seed, sequence, position);
                    CHECK(u >= 0.0F);
                    CHECK(u < 1.0F);
                    CHECK(u == sampling_uniform(seed, sequence, position));
                    seen.insert(u);
                }
            }
        }
        CHECK(seen.size() == 24);
    }
}

}  // namespace dflash::target
