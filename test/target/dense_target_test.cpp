// SPDX-License-Identifier: Apache-2.0
#include "model_folder.hpp"

#include <dflash/target/target_model.hpp>

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace dflash::target {
namespace {

struct Row {
    std::vector<TokenId> tokens;
    std::vector<std::int32_t> positions;
    std::vector<std::int32_t> starts = {0};

    PackedInput input() const {
        return {.tokens = tokens, .positions = positions, .starts = starts};
    }
};

Row make_row(const std::vector<std::int32_t>& lengths) {
    Row row;
    for (const std::int32_t length : lengths) {
        for (std::int32_t i = 0; i < length; ++i) {
            row.tokens.push_back(static_cast<TokenId>((row.tokens.size() * 37 + 11) % 512));
            row.positions.push_back(i);
        }
        row.starts.push_back(static_cast<std::int32_t>(row.tokens.size()));
    }
    return row;
}

using Features = std::map<std::int64_t, at::Tensor>;

Features features_of(TargetModel& model, const Row& row, const std::vector<std::int64_t>& taps) {
    Features features;
    model.capture(row.input(), taps, [&](std::int64_t layer, const at::Tensor& residual_TH) {
        CHECK(features.emplace(layer, residual_TH.clone()).second);
    });
    return features;
}

std::unique_ptr<TargetModel> load(const std::string& name,
                                  std::int64_t num_layers,
                                  at::ScalarType dtype = at::kFloat) {
    return load_target(
        "test/golden/targets/" + name,
        {.device = at::kCPU, .dtype = dtype, .num_layers = num_layers, .with_head = false});
}

}  // namespace

TEST_SUITE("target.dense_target") {
    TEST_CASE("capture: fewer loaded layers and other taps give the same bits") {
        const Row row = make_row({40, 3, 25});
        for (const char* name : {"T1", "T3"}) {
            CAPTURE(name);
            const auto whole = load(name, 0);
            const auto part = load(name, 3);
            const Features all = features_of(*whole, row, {0, 1, 2, 3});
            const Features some = features_of(*part, row, {2, 0});  // any order
            REQUIRE(some.size() == 2);
            CHECK(at::equal(some.at(0), all.at(0)));
            CHECK(at::equal(some.at(2), all.at(2)));
            CHECK(!at::equal(all.at(2), all.at(3)));
        }
    }

    TEST_CASE("capture: replicas and repeated calls give the same bits") {
        const Row row = make_row({100, 1, 64, 700});  // more than one piece of the MLP
        const auto model = load("T1", 0);
        const auto replica = replicate(*model, at::kCPU);
        CHECK(replica->embed_VH().is_same(model->embed_VH()));
        const Features first = features_of(*model, row, {1, 5});
        const Features other = features_of(*replica, row, {1, 5});
        features_of(*model, make_row({900}), {5});  // buffers grow and hold other values
        const Features again = features_of(*model, row, {1, 5});
        for (const std::int64_t layer : {1, 5}) {
            CAPTURE(layer);
            CHECK(at::equal(first.at(layer), other.at(layer)));
            CHECK(at::equal(first.at(layer), again.at(layer)));
        }
    }

    TEST_CASE("capture: a document does not see its neighbours") {
        const auto model = load("T3", 0);
        Row row = make_row({50, 60, 30});
        const at::Tensor before = features_of(*model, row, {3}).at(3);
        row.tokens[10] = (row.tokens[10] + 1) % 512;
        const at::Tensor after = features_of(*model, row, {3}).at(3);
        CHECK(at::equal(before.narrow(0, 50, 90), after.narrow(0, 50, 90)));
        CHECK(at::equal(before.narrow(0, 0, 10), after.narrow(0, 0, 10)));
        CHECK(!at::equal(before[10], after[10]));
        CHECK(!at::equal(before[49], after[49]));
    }

    TEST_CASE("capture: a row without tokens gives empty features") {
        const auto model = load("T1", 2);
        const Features features = features_of(*model, make_row({}), {0, 1});
        REQUIRE(features.size() == 2);
        CHECK((features.at(1).sizes() == at::IntArrayRef({0, 64})));
    }

    TEST_CASE("capture: bf16 stays near fp32") {
        const Row row = make_row({130, 70});
        for (const char* name : {"T1", "T1b", "T3"}) {
            const auto single = load(name, 0);
            const auto half = load(name, 0, at::kBFloat16);
            std::vector<std::int64_t> taps;
            for (std::int64_t l = 0; l < single->config().num_layers; ++l) {
                taps.push_back(l);
            }
            const Features expected = features_of(*single, row, taps);
            const Features got = features_of(*half, row, taps);
            for (const std::int64_t layer : taps) {
                CAPTURE(name);
                CAPTURE(layer);
                CHECK((got.at(layer).scalar_type() == at::kBFloat16));
                const double cosine =
                    at::cosine_similarity(got.at(layer).to(at::kDouble).flatten(),
                                          expected.at(layer).to(at::kDouble).flatten(),
                                          0)
                        .item<double>();
                CHECK(cosine > 0.999);
            }
        }
    }

    TEST_CASE("capture: refuses taps and inputs that break the contract") {
        const auto model = load("T1", 2);
        const FeatureSink ignore = [](std::int64_t, const at::Tensor&) {};
        const Row row = make_row({4});
        const auto fails = [&](const PackedInput& input, std::vector<std::int64_t> taps) {
            const auto error = testing::error_of([&] { model->capture(input, taps, ignore); });
            return error && error->kind() == ErrorKind::Internal;
        };
        CHECK(fails(row.input(), {2}));
        CHECK(fails(row.input(), {-1}));
        CHECK(fails(row.input(), {1, 1}));
        Row outside = row;
        outside.tokens[3] = 512;
        CHECK(fails(outside.input(), {0}));
        outside.tokens[3] = -1;
        CHECK(fails(outside.input(), {0}));
        Row short_positions = row;
        short_positions.positions.pop_back();
        CHECK(fails(short_positions.input(), {0}));
        Row wrong_end = row;
        wrong_end.starts.back() = 3;
        CHECK(fails(wrong_end.input(), {0}));
        CHECK(!fails(row.input(), {1}));
        const auto no_head = testing::error_of([&] { model->logits(at::zeros({1, 64})); });
        REQUIRE(no_head);
        CHECK(no_head->kind() == ErrorKind::Internal);
    }

    TEST_CASE("activation_bytes: covers the buffers and grows by token, not by its square") {
        const TargetConfig config = TargetConfig::read("test/golden/targets/T1");
        const Bytes small = activation_bytes(config, 10000, at::kFloat);
        const Bytes large = activation_bytes(config, 20000, at::kFloat);
        CHECK(large < 2 * small);
        // Residual, normed, q k v, turned q k, mixed; gate, up and inner of at most 8192 rows.
        CHECK(small >= 4 * (10000 * (64 + 64 + 256 + 192 + 128) + 8192 * 3 * 160));
    }
}

}  // namespace dflash::target
