// SPDX-License-Identifier: Apache-2.0
#include "reference.hpp"

#include <dflash/core/error.hpp>

#include <doctest/doctest.h>

namespace dflash::model {
namespace {

TEST_SUITE("model.weights") {
    TEST_CASE("weights and gradients are views that tile the flat buffers") {
        const DraftConfig config = small_config({LayerType::Full, LayerType::Sliding});
        DraftWeights weights(config, at::kCPU, at::kBFloat16);
        CHECK(weights.specs().size() == 25);
        CHECK((weights.compute_flat().scalar_type() == at::kBFloat16));
        CHECK((weights.gradient_flat().scalar_type() == at::kFloat));
        CHECK(weights.gradient_flat().eq(0).all().item<bool>());
        weights.compute_flat().zero_();
        std::int64_t total = 0;
        for (std::int64_t i = 0; i < 25; ++i) {
            weights.weight(i).fill_(1);
            weights.gradient(i).fill_(2);
            total += weights.weight(i).numel();
            CHECK(weights.index(weights.specs()[static_cast<std::size_t>(i)].name) == i);
        }
        CHECK(total == weights.numel());
        CHECK(weights.compute_flat().eq(1).all().item<bool>());
        CHECK(weights.gradient_flat().eq(2).all().item<bool>());
        CHECK_THROWS_AS(weights.index("layers.2.mlp.up_proj.weight"), Error);
    }

    TEST_CASE("weights that share their input join into one matrix") {
        const DraftConfig config = small_config({LayerType::Full});
        DraftWeights weights(config, at::kCPU, at::kFloat);
        weights.compute_flat().copy_(at::arange(weights.numel()));
        const std::int64_t q = weights.index("layers.0.self_attn.q_proj.weight");
        const at::Tensor joined = weights.joined_in(weights.compute_flat(), q, 3);
        CHECK(joined.equal(
            at::cat({weights.weight(q), weights.weight(q + 1), weights.weight(q + 2)})));
        // A norm lies between o_proj and gate_proj.
        CHECK_THROWS_AS(weights.joined_in(weights.compute_flat(), q, 5), Error);
    }

    TEST_CASE("initial weights depend on seed and name only") {
        const DraftConfig two = small_config({LayerType::Full, LayerType::Full});
        const DraftConfig three =
            small_config({LayerType::Full, LayerType::Full, LayerType::Sliding});
        const at::Tensor a = make_initial_weights(two, 5);
        CHECK(a.equal(make_initial_weights(two, 5)));
        CHECK_FALSE(a.equal(make_initial_weights(two, 6)));
        const DraftWeights layout_two(two, at::kCPU, at::kFloat);
        const DraftWeights layout_three(three, at::kCPU, at::kFloat);
        const at::Tensor b = make_initial_weights(three, 5);
        for (const char* name : {"layers.1.mlp.up_proj.weight", "fc.weight"}) {
            CHECK(layout_two.view_in(a, layout_two.index(name))
                      .equal(layout_three.view_in(b, layout_three.index(name))));
        }
        CHECK_FALSE(
            layout_two.view_in(a, layout_two.index("layers.0.mlp.up_proj.weight"))
                .equal(layout_two.view_in(a, layout_two.index("layers.0.mlp.gate_proj.weight"))));
    }

    TEST_CASE("matrices are normal with the configured range, norms are 1") {
        DraftConfig config = small_config({LayerType::Full});
        config.hidden_size = 512;  // fc has more than one piece
        config.initializer_range = 0.03;
        const at::Tensor flat = make_initial_weights(config, 1);
        const DraftWeights layout(config, at::kCPU, at::kFloat);
        const at::Tensor fc = layout.view_in(flat, layout.index("fc.weight"));
        REQUIRE(fc.numel() > 3 * (1 << 17));
        CHECK(fc.mean().item<double>() == doctest::Approx(0).scale(1).epsilon(2e-4));
        CHECK(fc.std().item<double>() == doctest::Approx(0.03).epsilon(5e-3));
        CHECK(fc.abs().gt(0.06).to(at::kFloat).mean().item<double>() ==
              doctest::Approx(0.0455).epsilon(0.03));
        CHECK(fc.flatten().narrow(0, 0, 1 << 18).ne(0).all().item<bool>());
        CHECK(layout.view_in(flat, layout.index("norm.weight")).eq(1).all().item<bool>());
        CHECK(layout.view_in(flat, layout.index("layers.0.self_attn.k_norm.weight"))
                  .eq(1)
                  .all()
                  .item<bool>());
    }
}

}  // namespace
}  // namespace dflash::model
