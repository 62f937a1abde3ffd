// SPDX-License-Identifier: Apache-2.0
#include "reference.hpp"

#include <dflash/core/error.hpp>

#include <doctest/doctest.h>

namespace dflash::model {
namespace {

const std::vector<std::vector<LayerType>> kLayers{
    {LayerType::Full, LayerType::Full},
    {LayerType::Sliding, LayerType::Full},
    {LayerType::Sliding, LayerType::Sliding, LayerType::Sliding},
};

at::Tensor random_features(const DraftConfig& config,
                           const data::PackedRow& row,
                           at::ScalarType dtype) {
    at::manual_seed(41);
    return at::randn({config.num_features(), row.num_tokens(), config.hidden_size}, at::kDouble)
        .to(dtype);
}

at::Tensor embedding() {
    at::manual_seed(11);
    return at::randn({40, 24}, at::kDouble) * 0.5;
}

/// Rows of block n.
at::Tensor block_of(const at::Tensor& hidden_MH, const DraftConfig& config, std::int64_t n) {
    return hidden_MH.narrow(0, n * config.block_size, config.block_size);
}

TEST_SUITE("model.drafter") {
    TEST_CASE("equals the path of inference: one block at a time on a context cut at the anchor") {
        for (const auto& layers : kLayers) {
            for (const std::optional<bool> causal : {std::optional<bool>{}, {false}, {true}}) {
                for (const std::int64_t B : {2, 5, 16}) {
                    DraftConfig config = small_config(layers, B);
                    config.is_causal = causal;
                    const auto drafter = make_drafter(config, at::kDouble);
                    const data::PackedRow row =
                        make_row(config, {1, 30, 9}, {{0}, {0, 1, 2, 17, 28, 29}, {4, 7}});
                    const at::Tensor features = random_features(config, row, at::kDouble);
                    const at::Tensor expected = reference_hidden(
                        config, copy_weights(drafter->weights()), embedding(), row, features);
                    CAPTURE(layers.size());
                    CAPTURE(B);
                    CHECK(largest_error(drafter->hidden(row, features), expected) < 1e-12);
                    const auto single = make_drafter(config, at::kFloat);
                    CHECK(largest_error(single->hidden(row, features.to(at::kFloat)), expected) <
                          2e-5);
                }
            }
        }
    }

    TEST_CASE("features at or past the anchor move nothing, those before it do") {
        for (const auto& layers : kLayers) {
            const DraftConfig config = small_config(layers);
            const auto drafter = make_drafter(config, at::kFloat);
            const data::PackedRow row = make_row(config, {30, 20}, {{3, 17}, {6}});
            const at::Tensor features = random_features(config, row, at::kFloat);
            const at::Tensor before = drafter->hidden(row, features).clone();
            const auto moved = [&](std::int64_t n, std::int64_t t) {
                const at::Tensor changed = features.clone();
                changed.select(1, t).add_(1);
                return !block_of(drafter->hidden(row, changed), config, n)
                            .equal(block_of(before, config, n));
            };
            for (std::int64_t t = 0; t < 50; ++t) {
                CAPTURE(t);
                if (t >= 17) {
                    CHECK_FALSE(moved(1, t));
                }
                if (t >= 3) {
                    CHECK_FALSE(moved(0, t));
                }
                if (t < 30 || t >= 36) {
                    CHECK_FALSE(moved(2, t));
                }
            }
            CHECK(moved(0, 2));
            CHECK(moved(1, 16));
            CHECK(moved(2, 35));
        }
    }

    TEST_CASE("a change of one block's anchor token moves that block only") {
        for (const auto& layers : kLayers) {
            const DraftConfig config = small_config(layers);
            const auto drafter = make_drafter(config, at::kFloat);
            data::PackedRow row = make_row(config, {30, 20}, {{3, 4, 5}, {6}});
            const at::Tensor features = random_features(config, row, at::kFloat);
            const at::Tensor before = drafter->hidden(row, features).clone();
            row.tokens[4] = (row.tokens[4] + 1) % 39;
            const at::Tensor after = drafter->hidden(row, features);
            for (std::int64_t n = 0; n < 4; ++n) {
                CAPTURE(n);
                CHECK(block_of(before, config, n).equal(block_of(after, config, n)) == (n != 1));
            }
        }
    }

    TEST_CASE("packed documents give what separate ones give") {
        for (const auto& layers : kLayers) {
            const DraftConfig config = small_config(layers);
            const std::vector<std::int32_t> lengths{30, 1, 12, 25};
            const std::vector<std::vector<std::int32_t>> anchors{
                {0, 11, 28}, {0}, {3, 4}, {20, 21, 22, 24}};
            const auto packed = make_drafter(config, at::kFloat);
            const auto separate = make_drafter(config, at::kFloat);
            const data::PackedRow row = make_row(config, lengths, anchors);
            const at::Tensor features = random_features(config, row, at::kFloat);
            const RowSums sums = packed->forward_backward(row, features);
            const at::Tensor hidden = packed->hidden(row, features).clone();
            double loss = 0;
            at::Tensor correct = at::zeros({config.block_size}, at::kLong);
            std::vector<at::Tensor> hidden_parts;
            for (std::size_t i = 0; i < lengths.size(); ++i) {
                // The same document at the same place in the list, alone.
                std::vector<std::int32_t> one_length = lengths;
                std::vector<std::vector<std::int32_t>> one_anchor(lengths.size());
                one_anchor[i] = anchors[i];
                const data::PackedRow whole = make_row(config, one_length, one_anchor);
                data::PackedRow alone;
                const data::Document& document = whole.documents[i];
                alone.tokens.assign(whole.tokens.begin() + document.begin,
                                    whole.tokens.begin() + document.begin + document.length);
                alone.positions.assign(whole.positions.begin() + document.begin,
                                       whole.positions.begin() + document.begin + document.length);
                alone.blocks = whole.blocks;
                for (std::int32_t& anchor : alone.blocks.anchors) {
                    anchor -= document.begin;
                }
                for (std::int32_t& begin : alone.blocks.context_begin) {
                    begin -= document.begin;
                }
                alone.documents = {document};
                const at::Tensor part =
                    features.narrow(1, document.begin, document.length).contiguous();
                const RowSums one = separate->forward_backward(alone, part);
                loss += one.loss.item<double>();
                correct.add_(one.correct);
                hidden_parts.push_back(separate->hidden(alone, part).clone());
            }
            CHECK(sums.loss.item<double>() == doctest::Approx(loss).epsilon(1e-6));
            CHECK(sums.correct.equal(correct));
            CHECK(largest_error(hidden, at::cat(hidden_parts)) < 1e-5);
            CHECK(largest_error(packed->weights().gradient_flat(),
                                separate->weights().gradient_flat()) < 1e-5);
        }
    }

    TEST_CASE("evaluation gives the loss and the counts of training, and every argmax") {
        const DraftConfig config = small_config(kLayers[1]);
        const auto drafter = make_drafter(config, at::kFloat);
        const data::PackedRow row = make_row(config, {30, 12}, {{0, 11, 28}, {3, 4}});
        const at::Tensor features = random_features(config, row, at::kFloat);
        const RowSums trained = drafter->forward_backward(row, features);
        at::Tensor argmax;
        const RowSums evaluated = drafter->evaluate(row, features, &argmax);
        CHECK(evaluated.loss.item<double>() == trained.loss.item<double>());
        CHECK(evaluated.correct.equal(trained.correct));

        at::manual_seed(11);
        at::randn({40, 24}, at::kDouble);
        const at::Tensor head = at::randn({40, 24}, at::kDouble) * 0.5;
        const at::Tensor hidden = drafter->hidden(row, features).to(at::kDouble);
        std::vector<std::int64_t> correct(static_cast<std::size_t>(config.block_size));
        for (std::size_t r = 0; r < row.blocks.head_rows.size(); ++r) {
            const std::int64_t head_row = row.blocks.head_rows[r];
            const std::int64_t best = head.mv(hidden[head_row]).argmax().item<std::int64_t>();
            CHECK(argmax[static_cast<std::int64_t>(r)].item<std::int64_t>() == best);
            correct[static_cast<std::size_t>(head_row % config.block_size)] +=
                best == row.blocks.labels[r] ? 1 : 0;
        }
        CHECK(trained.correct.equal(at::tensor(correct)));
    }

    TEST_CASE("gradients of rows add up, in the same bits every time") {
        const DraftConfig config = small_config(kLayers[1]);
        const data::PackedRow small = make_row(config, {12}, {{3, 4}});
        const data::PackedRow large = make_row(config, {30, 12}, {{0, 11, 28}, {3, 4}});
        const at::Tensor small_features = random_features(config, small, at::kFloat);
        const at::Tensor large_features = random_features(config, large, at::kFloat);
        const auto gradient = [&](std::initializer_list<int> rows) {
            const auto drafter = make_drafter(config, at::kFloat);
            for (const int which : rows) {
                drafter->forward_backward(which == 0 ? small : large,
                                          which == 0 ? small_features : large_features);
            }
            return drafter->weights().gradient_flat();
        };
        // Buffers of a larger or smaller row before leave no trace.
        CHECK(gradient({0, 1, 0}).equal(gradient({0, 1, 0})));
        CHECK(largest_error(gradient({0, 1}), gradient({0}) + gradient({1})) < 1e-6);
        CHECK(largest_error(gradient({1, 0}), gradient({0, 1})) < 1e-6);
    }

    TEST_CASE("rows without labels or blocks add nothing") {
        const DraftConfig config = small_config(kLayers[0]);
        const auto drafter = make_drafter(config, at::kFloat);
        // Position 29's only label would be past the end.
        for (const std::vector<std::int32_t>& anchors :
             {std::vector<std::int32_t>{29}, std::vector<std::int32_t>{}}) {
            const data::PackedRow row = make_row(config, {30}, {anchors});
            REQUIRE(row.blocks.head_rows.empty());
            const at::Tensor features = random_features(config, row, at::kFloat);
            const RowSums sums = drafter->forward_backward(row, features);
            CHECK(sums.loss.item<double>() == 0);
            CHECK(sums.correct.sum().item<std::int64_t>() == 0);
            CHECK(drafter->weights().gradient_flat().eq(0).all().item<bool>());
            at::Tensor argmax;
            drafter->evaluate(row, features, &argmax);
            CHECK(argmax.numel() == 0);
            CHECK(drafter->hidden(row, features).size(0) ==
                  static_cast<std::int64_t>(anchors.size()) * config.block_size);
        }
    }

    TEST_CASE("a row of another block size or with foreign features is an internal error") {
        const DraftConfig config = small_config(kLayers[0]);
        const auto drafter = make_drafter(config, at::kFloat);
        const data::PackedRow row = make_row(config, {30}, {{2}});
        const at::Tensor features = random_features(config, row, at::kFloat);
        CHECK_THROWS_AS(drafter->hidden(row, features.narrow(0, 0, 2)), Error);
        CHECK_THROWS_AS(drafter->hidden(row, features.to(at::kDouble)), Error);
        const data::PackedRow other = make_row(small_config(kLayers[0], 4), {30}, {{2}});
        CHECK_THROWS_AS(drafter->hidden(other, features), Error);
    }
}

}  // namespace
}  // namespace dflash::model
