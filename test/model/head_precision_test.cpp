// SPDX-License-Identifier: Apache-2.0
// How far a head in 8 bits moves the gradient at the hidden rows: by its cosine with the gradient
// of the head in the compute dtype, and the relative difference.
#include "../golden_check/drafter_case.hpp"
#include "reference.hpp"

#include <dflash/model/head_precision.hpp>

#include <cmath>
#include <doctest/doctest.h>
#include <memory>
#include <string>
#include <vector>

namespace dflash::model {
namespace {

struct Measured {
    double cosine = 0;  // of all rows as one vector
    double worst_row = 1;
    double difference = 0;
    double loss_difference = 0;  // relative
};

/// The same drafter with another head.
std::unique_ptr<Drafter> with_head(Drafter& drafter, HeadPrecision precision) {
    auto other = std::make_unique<Drafter>(drafter.config(),
                                           drafter.ends(),
                                           at::kCPU,
                                           drafter.weights().compute_flat().scalar_type(),
                                           make_torch_paths(at::kCPU),
                                           DraftWeights::Use::Training,
                                           drafter.loss_weights(),
                                           /*recompute_layers=*/0,
                                           precision);
    other->weights().compute_flat().copy_(drafter.weights().compute_flat());
    return other;
}

Measured measure(Drafter& drafter,
                 HeadPrecision precision,
                 const data::PackedRow& row,
                 const at::Tensor& features_KTH) {
    RowTrace exact;
    RowTrace rounded;
    const double loss = drafter.forward_backward(row, features_KTH, &exact).loss.item<double>();
    const double rounded_loss = with_head(drafter, precision)
                                    ->forward_backward(row, features_KTH, &rounded)
                                    .loss.item<double>();
    CHECK(at::equal(exact.hidden_MH, rounded.hidden_MH));
    const at::Tensor a = exact.hidden_grad_MH.to(at::kDouble);
    const at::Tensor b = rounded.hidden_grad_MH.to(at::kDouble);
    const at::Tensor product_M = (a * b).sum(1);
    const at::Tensor norms_M = a.norm(2, 1) * b.norm(2, 1);
    const at::Tensor counts_M = norms_M.gt(0);
    Measured result;
    result.cosine = product_M.sum().item<double>() / (a.norm() * b.norm()).item<double>();
    result.worst_row = (product_M / norms_M).masked_select(counts_M).min().item<double>();
    result.difference = ((a - b).norm() / a.norm()).item<double>();
    result.loss_difference = std::abs(rounded_loss - loss) / loss;
    return result;
}

void report(const std::string& name, const Measured& m) {
    MESSAGE(name,
            ": cosine ",
            m.cosine,
            ", of the worst row ",
            m.worst_row,
            ", relative difference ",
            m.difference,
            ", of the loss ",
            m.loss_difference);
}

TEST_SUITE("model.head_precision") {
    TEST_CASE("a head in 8 bits turns the hidden rows' gradient little, from flat logits to sure") {
        DraftConfig config = small_config({LayerType::Full}, 8);
        config.hidden_size = 128;
        config.vocab_size = 20000;
        std::vector<std::int32_t> anchors;
        for (std::int32_t n = 0; n < 24; ++n) {
            anchors.push_back(5 + 3 * n);
        }
        const data::PackedRow row = make_row(config, {100}, {anchors});
        const auto drafter = make_drafter(config, at::kFloat);
        at::manual_seed(3);
        // Words' vectors with something in common, as trained heads have.
        const at::Tensor head_VH = drafter->ends().head_VH;
        head_VH.normal_(0, 1 / std::sqrt(128.0)).add_(at::randn({128}) * 0.05);
        const at::Tensor features =
            at::randn({config.num_features(), row.num_tokens(), config.hidden_size});
        const at::Tensor norm = drafter->weights().weight(drafter->weights().index("norm.weight"));

        struct Bound {
            double logit_spread;
            double logits;    // of the cosine, logits in 8 bits
            double gradient;  // the gradient as well
            double worst_row;
        };

        for (const Bound& bound : {Bound{0.02, 0.9999, 0.999, 0.999},
                                   Bound{1, 0.9999, 0.999, 0.999},
                                   Bound{2.5, 0.9995, 0.999, 0.997},
                                   Bound{5, 0.998, 0.997, 0.97}}) {
            CAPTURE(bound.logit_spread);
            norm.fill_(bound.logit_spread);
            const Measured logits = measure(*drafter, HeadPrecision::Float8Logits, row, features);
            report("logits of spread " + std::to_string(bound.logit_spread), logits);
            CHECK(logits.cosine > bound.logits);
            const Measured both = measure(*drafter, HeadPrecision::Float8, row, features);
            report("  and their gradient", both);
            CHECK(both.cosine > bound.gradient);
            CHECK(both.worst_row > bound.worst_row);
            // They are rounded, after all.
            CHECK(logits.cosine < 1);
            CHECK(both.cosine < logits.cosine + 1e-3);
        }
    }

    TEST_CASE("a head in 8 bits of the reference's drafter gives its gradient") {
        const golden::DrafterCase c("test/golden/drafter/full5", at::kCPU);
        const auto drafter = c.make_oracle(at::kCPU);
        const std::vector<std::size_t> members{0};
        const golden::Anchors anchors = golden::read_anchors(*c.json.find("anchors"));
        const data::PackedRow row = c.make_row(members, anchors);
        const at::Tensor features = c.features(members);
        for (const HeadPrecision precision : {HeadPrecision::Float8Logits, HeadPrecision::Float8}) {
            const Measured m = measure(*drafter, precision, row, features);
            report(precision == HeadPrecision::Float8 ? "fp8" : "fp8-logits", m);
            CHECK(m.cosine > 0.998);
            CHECK(m.loss_difference < 2e-3);
        }
    }

    TEST_CASE("a head in 8 bits is made once, and evaluation does not use it") {
        const DraftConfig config = small_config({LayerType::Full});
        const data::PackedRow row = make_row(config, {40}, {{3, 9, 20}});
        const auto drafter = make_drafter(config, at::kFloat);
        const at::Tensor features = at::randn({3, row.num_tokens(), config.hidden_size});
        const auto first = with_head(*drafter, HeadPrecision::Float8);
        const auto second = with_head(*first, HeadPrecision::Float8);
        CHECK(first->ends().float8.words_VH.values_RC.is_alias_of(
            second->ends().float8.words_VH.values_RC));
        CHECK(first->ends().float8.columns_HV.values_RC.is_alias_of(
            second->ends().float8.columns_HV.values_RC));
        const Bytes bytes = static_cast<Bytes>(first->ends().float8.words_VH.values_RC.nbytes() +
                                               first->ends().float8.words_VH.scale_R.nbytes() +
                                               first->ends().float8.columns_HV.values_RC.nbytes() +
                                               first->ends().float8.columns_HV.scale_R.nbytes());
        CHECK(bytes == float8_head_bytes(40, 24, HeadPrecision::Float8));
        CHECK(float8_head_bytes(40, 24, HeadPrecision::Float8Logits) == 40 * 24 + 40 * 4);
        CHECK(float8_head_bytes(40, 24, HeadPrecision::Compute) == 0);

        at::Tensor expected;
        at::Tensor got;
        const double loss = drafter->evaluate(row, features, &expected).loss.item<double>();
        CHECK(first->evaluate(row, features, &got).loss.item<double>() == loss);
        CHECK(at::equal(got, expected));
        CHECK(head_precision("bf16") == HeadPrecision::Compute);
        CHECK(head_precision("fp8-logits") == HeadPrecision::Float8Logits);
        CHECK(head_precision("fp8") == HeadPrecision::Float8);
    }
}

}  // namespace
}  // namespace dflash::model
