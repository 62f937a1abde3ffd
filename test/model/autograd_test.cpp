// SPDX-License-Identifier: Apache-2.0
// Hand-written backward passes against Torch's autograd over the reference, and against finite
// differences, in fp64. The only tests of this module that record graphs.
#include "reference.hpp"

#include <dflash/model/tiled_attention.hpp>
#include <dflash/tensor/bridge.hpp>

#include <doctest/doctest.h>

namespace dflash::model {
namespace {

AttentionInputs leaves(const data::PackedRow& row, std::int64_t K, std::int64_t G, std::int64_t d) {
    at::manual_seed(31);
    const std::int64_t M = row.blocks.num_blocks() * row.blocks.block_size;
    const std::int64_t T = row.num_tokens();
    const auto leaf = [&](std::int64_t rows, std::int64_t heads) {
        return at::randn({rows, heads, d}, at::kDouble).requires_grad_();
    };
    return {leaf(M, K * G), leaf(T, K), leaf(T, K), leaf(M, K), leaf(M, K)};
}

TEST_SUITE("model.autograd") {
    TEST_CASE("attention's gradients are autograd's, whatever the tiles and the mask") {
        struct Shape {
            std::vector<std::int32_t> lengths;
            std::vector<std::vector<std::int32_t>> anchors;
            std::int64_t B, K, G, d;
        };

        const std::vector<Shape> shapes{
            {{40}, {{0, 1, 20, 38, 39}}, 3, 2, 3, 4},
            {{5, 60, 3}, {{0, 4}, {0, 17, 18, 19, 59}, {2}}, 8, 1, 8, 6},
            {{9, 31}, {{}, {3, 30}}, 32, 3, 1, 2},
        };
        for (std::size_t i = 0; i < shapes.size(); ++i) {
            const auto& [lengths, anchors, B, K, G, d] = shapes[i];
            const data::PackedRow row =
                make_row(small_config({LayerType::Full}, B), lengths, anchors);
            for (const AttentionMask mask : {AttentionMask{false, 0},
                                             AttentionMask{true, 0},
                                             AttentionMask{true, 4},
                                             AttentionMask{false, 10},
                                             AttentionMask{true, 25}}) {
                const AttentionInputs in = leaves(row, K, G, d);
                const at::Tensor d_o = at::randn(in.q_MQd.sizes(), at::kDouble);
                reference_attention(in, mask, row.blocks).o_MQd.backward(d_o);
                const AttentionInputs plain{in.q_MQd.detach(),
                                            in.k_context_TKd.detach(),
                                            in.v_context_TKd.detach(),
                                            in.k_block_MKd.detach(),
                                            in.v_block_MKd.detach()};
                for (const std::int64_t tile : {1, 900, 0}) {
                    CAPTURE(i);
                    CAPTURE(mask.causal);
                    CAPTURE(mask.window);
                    CAPTURE(tile);
                    TiledAttention attention(at::kCPU, tile);
                    attention.set_row(row.blocks, row.num_tokens());
                    const at::Tensor o = at::empty_like(plain.q_MQd);
                    const at::Tensor lse = at::empty({o.size(0), K * G}, at::kDouble);
                    const AttentionOutputs result{.o_MQd = o, .o_rest_MQd = {}, .lse_MQ = lse};
                    attention.forward(plain, mask, result);
                    const AttentionGradients out{at::empty_like(plain.q_MQd),
                                                 at::empty_like(plain.k_context_TKd),
                                                 at::empty_like(plain.v_context_TKd),
                                                 at::empty_like(plain.k_block_MKd),
                                                 at::empty_like(plain.v_block_MKd)};
                    attention.backward(plain, mask, result, d_o, out);
                    CHECK(largest_error(out.dq_MQd, in.q_MQd.grad()) < 1e-12);
                    CHECK(largest_error(out.dk_context_TKd, in.k_context_TKd.grad()) < 1e-12);
                    CHECK(largest_error(out.dv_context_TKd, in.v_context_TKd.grad()) < 1e-12);
                    CHECK(largest_error(out.dk_block_MKd, in.k_block_MKd.grad()) < 1e-12);
                    CHECK(largest_error(out.dv_block_MKd, in.v_block_MKd.grad()) < 1e-12);
                }
            }
        }
    }

    TEST_CASE("the drafter's gradients are autograd's") {
        for (const auto& layers :
             {std::vector{LayerType::Full},
              std::vector{LayerType::Full, LayerType::Full},
              std::vector{LayerType::Sliding, LayerType::Full},
              std::vector{LayerType::Full, LayerType::Sliding, LayerType::Sliding}}) {
            const DraftConfig config = small_config(layers);
            const auto drafter = make_drafter(config, at::kDouble);
            const data::PackedRow row =
                make_row(config, {31, 4, 18}, {{0, 1, 9, 22, 28, 29}, {1}, {0, 16}});
            const at::Tensor features =
                at::randn({3, row.num_tokens(), config.hidden_size}, at::kDouble);
            // Embedding and head are the ones that make_drafter draws first.
            at::manual_seed(11);
            const at::Tensor embed = at::randn({40, 24}, at::kDouble) * 0.5;
            const at::Tensor head = at::randn({40, 24}, at::kDouble) * 0.5;
            Weights weights = copy_weights(drafter->weights());
            for (auto& [name, weight] : weights) {
                weight.requires_grad_();
            }
            const at::Tensor hidden = reference_hidden(config, weights, embed, row, features);
            hidden.retain_grad();
            const at::Tensor loss = reference_loss(hidden, head, row);
            loss.backward();

            RowTrace trace;
            const RowSums sums = drafter->forward_backward(row, features, &trace);
            CHECK(largest_error(trace.hidden_MH, hidden.detach()) < 1e-12);
            CHECK(sums.loss.item<double>() == doctest::Approx(loss.item<double>()).epsilon(1e-12));
            CHECK(largest_error(trace.hidden_grad_MH, hidden.grad()) < 1e-12);
            for (const auto& [name, weight] : weights) {
                CAPTURE(name);
                const at::Tensor gradient =
                    drafter->weights().gradient(drafter->weights().index(name));
                CHECK(largest_error(gradient, weight.grad()) < 1e-11);
            }
        }
    }

    TEST_CASE("in bf16 the drafter is nearer to fp64 than autograd in bf16 is") {
        const DraftConfig config = small_config({LayerType::Full, LayerType::Sliding});
        const auto drafter = make_drafter(config, at::kBFloat16);
        const data::PackedRow row =
            make_row(config, {61, 44, 58}, {{0, 1, 9, 22, 28, 59}, {1, 20}, {0, 16, 30}});
        at::manual_seed(5);
        const at::Tensor features =
            at::randn({3, row.num_tokens(), config.hidden_size}).to(at::kBFloat16);
        at::manual_seed(11);  // as make_drafter draws the ends
        const at::Tensor embed = (at::randn({40, 24}, at::kDouble) * 0.5).to(at::kBFloat16);
        const at::Tensor head = (at::randn({40, 24}, at::kDouble) * 0.5).to(at::kBFloat16);
        const auto autograd = [&](at::ScalarType dtype) {
            Weights weights = copy_weights(drafter->weights());
            for (auto& [name, weight] : weights) {
                weight = weight.to(dtype).detach().requires_grad_();
            }
            reference_loss(
                reference_hidden(config, weights, embed.to(dtype), row, features.to(dtype)),
                head.to(dtype),
                row)
                .backward();
            for (auto& [name, weight] : weights) {
                weight = weight.grad().to(at::kDouble);
            }
            return weights;
        };
        Weights exact = autograd(at::kDouble);
        Weights rounded = autograd(at::kBFloat16);
        drafter->forward_backward(row, features);
        const auto relative_rms = [](const at::Tensor& got, const at::Tensor& expected) {
            return ((got - expected).norm() / expected.norm()).item<double>();
        };
        for (const auto& [name, gradient] : exact) {
            CAPTURE(name);
            const at::Tensor ours =
                drafter->weights().gradient(drafter->weights().index(name)).to(at::kDouble);
            CHECK(relative_rms(ours, gradient) < relative_rms(rounded[name], gradient));
        }
    }

    TEST_CASE("the drafter's gradients are slopes of its loss") {
        const DraftConfig config = small_config({LayerType::Sliding, LayerType::Full});
        const auto drafter = make_drafter(config, at::kDouble);
        const data::PackedRow row = make_row(config, {30, 12}, {{2, 14, 28}, {0, 10}});
        const at::Tensor features =
            at::randn({3, row.num_tokens(), config.hidden_size}, at::kDouble);
        drafter->forward_backward(row, features);
        const at::Tensor gradient = drafter->weights().gradient_flat().clone();
        const at::Tensor flat = drafter->weights().compute_flat();
        const double step = 1e-5;
        for (std::int64_t i = 13; i < flat.numel(); i += flat.numel() / 23) {
            CAPTURE(i);
            const auto loss_at = [&](double change) {
                flat[i].add_(change);
                const double loss = drafter->evaluate(row, features).loss.item<double>();
                flat[i].sub_(change);
                return loss;
            };
            const double slope = (loss_at(step) - loss_at(-step)) / (2 * step);
            CHECK(gradient[i].item<double>() == doctest::Approx(slope).epsilon(1e-5).scale(1e-2));
        }
    }
}

}  // namespace
}  // namespace dflash::model
