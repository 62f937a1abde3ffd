// SPDX-License-Identifier: Apache-2.0
#include "../golden_check/golden_check.hpp"

#include <dflash/core/error.hpp>
#include <dflash/train/optimizer.hpp>

#include <cmath>
#include <doctest/doctest.h>
#include <iterator>
#include <limits>
#include <vector>

namespace dflash::train {
namespace {

/// The MLP's weights have more than two pieces of the CPU, and not a whole number of them.
model::DraftConfig config() {
    model::DraftConfig result;
    result.hidden_size = 96;
    result.intermediate_size = 1411;
    result.num_heads = 3;
    result.num_kv_heads = 1;
    result.head_dim = 32;
    result.vocab_size = 8;
    result.mask_token_id = 1;
    result.target_layer_ids = {1, 2};
    result.num_target_layers = 4;
    result.layer_types = {model::LayerType::Full};
    return result;
}

/// The update written out for one weight, in double.
struct Scalar {
    double w, m = 0, v = 0;

    void step(double g, double lr, const AdamWOptions& o, int t) {
        w *= 1 - lr * o.weight_decay;
        m = o.beta1 * m + (1 - o.beta1) * g;
        v = o.beta2 * v + (1 - o.beta2) * g * g;
        const double mhat = m / (1 - std::pow(o.beta1, t));
        const double vhat = v / (1 - std::pow(o.beta2, t));
        w -= lr * mhat / (std::sqrt(vhat) + o.eps);
    }
};

at::Tensor gradient(std::int64_t numel, int step) {
    at::manual_seed(static_cast<std::uint64_t>(step) + 100);
    return at::randn({numel}) * 0.3;
}

TEST_SUITE("train.optimizer") {
    TEST_CASE("is AdamW with decay on all weights, scaling and clipping, in every piece") {
        for (const double clip : {0.0, 1.0, 1e9}) {
            CAPTURE(clip);
            model::DraftWeights weights(config(), at::kCPU, at::kFloat);
            const std::int64_t P = weights.numel();
            const AdamWOptions options{
                .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = clip};
            AdamW optimizer(weights, options);
            at::manual_seed(1);
            const at::Tensor start = at::randn({P});
            optimizer.set_master(start);
            std::vector<std::int64_t> watched{1, P / 2};
            for (const AdamW::Piece& piece : optimizer.pieces()) {
                watched.push_back(piece.begin);
                watched.push_back(piece.begin + piece.count - 1);
            }
            REQUIRE(std::ssize(optimizer.pieces()) > std::ssize(weights.specs()) + 3);
            std::vector<Scalar> expected;
            for (const std::int64_t i : watched) {
                expected.push_back({start[i].item<double>()});
            }
            for (int t = 1; t <= 5; ++t) {
                const at::Tensor sums = gradient(P, t);
                const double scale = 0.25;
                const double norm =
                    scale * std::sqrt(sums.to(at::kDouble).square().sum().item<double>());
                const double lr = 0.01 * t;
                const GradientNorms norms = optimizer.step(sums.clone(), scale, lr);
                const at::Tensor got = norms.norm;
                CHECK((got.scalar_type() == at::kDouble));
                CHECK(got.item<double>() == doctest::Approx(norm).epsilon(1e-12));
                const double factor =
                    clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) * scale : scale;
                for (std::size_t i = 0; i < watched.size(); ++i) {
                    expected[i].step(sums[watched[i]].item<double>() * factor, lr, options, t);
                }
            }
            CHECK(optimizer.steps() == 5);
            for (std::size_t i = 0; i < watched.size(); ++i) {
                CAPTURE(watched[i]);
                CHECK(weights.compute_flat()[watched[i]].item<double>() ==
                      doctest::Approx(expected[i].w).epsilon(2e-6));
            }
        }
    }

    TEST_CASE("fp32 weights are their own master, bf16 weights are rounded from it") {
        model::DraftWeights fp32(config(), at::kCPU, at::kFloat);
        const AdamW own(fp32, {});
        CHECK(own.master().is_alias_of(fp32.compute_flat()));

        model::DraftWeights bf16(config(), at::kCPU, at::kBFloat16);
        AdamW optimizer(bf16, {});
        at::manual_seed(2);
        optimizer.set_master(at::randn({bf16.numel()}));
        CHECK(bf16.compute_flat().equal(optimizer.master().to(at::kBFloat16)));
        // Steps too small for bf16 add up in the master weights.
        const at::Tensor before = optimizer.master().clone();
        for (int t = 0; t < 50; ++t) {
            optimizer.step(at::ones({bf16.numel()}), 1.0, 1e-4);
        }
        const at::Tensor moved = before - optimizer.master();
        CHECK(moved.min().item<float>() == doctest::Approx(50e-4).epsilon(1e-2));
        CHECK(bf16.compute_flat().equal(optimizer.master().to(at::kBFloat16)));
    }

    TEST_CASE("continues from its state in the same bits") {
        const auto run = [&](int first, int last, AdamW& optimizer) {
            for (int t = first; t <= last; ++t) {
                optimizer.step(gradient(optimizer.master().numel(), t), 0.5, 1e-3);
            }
        };
        at::manual_seed(3);
        model::DraftWeights whole(config(), at::kCPU, at::kFloat);
        const at::Tensor start = at::randn({whole.numel()});
        AdamW a(whole, {});
        a.set_master(start);
        run(1, 6, a);

        model::DraftWeights first(config(), at::kCPU, at::kFloat);
        AdamW b(first, {});
        b.set_master(start);
        run(1, 3, b);
        model::DraftWeights second(config(), at::kCPU, at::kFloat);
        AdamW c(second, {});
        c.set_master(b.master());
        c.set_moments(b.exp_avg(), b.exp_avg_sq(), b.steps());
        run(4, 6, c);
        CHECK(c.steps() == 6);
        CHECK(c.master().equal(a.master()));
        CHECK(c.exp_avg().equal(a.exp_avg()));
        CHECK(c.exp_avg_sq().equal(a.exp_avg_sq()));
    }

    TEST_CASE("a gradient of zero leaves weights without decay as they are") {
        model::DraftWeights weights(config(), at::kCPU, at::kFloat);
        AdamW optimizer(weights, {});
        const at::Tensor start = at::ones({weights.numel()});
        optimizer.set_master(start);
        for (const double scale : {1.0, 0.0}) {  // 0: a step without labels
            CHECK(optimizer.step(at::zeros({weights.numel()}), scale, 0.1).norm.item<double>() ==
                  0);
        }
        CHECK(weights.compute_flat().equal(start));
    }

    TEST_CASE("a gradient that is not finite changes nothing, and later steps do not see it") {
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
            CAPTURE(at::toString(dtype));
            model::DraftWeights undisturbed_weights(config(), at::kCPU, dtype);
            model::DraftWeights weights(config(), at::kCPU, dtype);
            const AdamWOptions options{.weight_decay = 0.1};
            AdamW undisturbed(undisturbed_weights, options);
            AdamW optimizer(weights, options);
            const std::int64_t P = weights.numel();
            at::manual_seed(4);
            const at::Tensor start = at::randn({P});
            undisturbed.set_master(start);
            optimizer.set_master(start);
            int t = 0;
            for (const float bad : {NAN, INFINITY, -INFINITY}) {
                for (const AdamW::Piece& piece : optimizer.pieces()) {
                    if (piece.weight % 3 == 0) {
                        ++t;
                        undisturbed.step(gradient(P, t), 0.5, 1e-2);
                        optimizer.step(gradient(P, t), 0.5, 1e-2);
                    }
                    const at::Tensor sums = gradient(P, t + 1000);
                    sums[piece.begin + piece.count / 2] = bad;
                    const GradientNorms norms = optimizer.step(sums, 0.5, 1e-2);
                    CHECK_FALSE(std::isfinite(norms.norm.item<double>()));
                    CHECK(at::isfinite(norms.pieces_N).logical_not().sum().item<int>() == 1);
                    CHECK(optimizer.steps() == t);
                    CHECK(weights.compute_flat().equal(undisturbed_weights.compute_flat()));
                    CHECK(optimizer.master().equal(undisturbed.master()));
                    CHECK(optimizer.exp_avg().equal(undisturbed.exp_avg()));
                    CHECK(optimizer.exp_avg_sq().equal(undisturbed.exp_avg_sq()));
                }
            }
            CHECK(undisturbed.steps() == t);
        }
    }

    TEST_CASE("the largest finite gradient is no reason to skip") {
        model::DraftWeights weights(config(), at::kCPU, at::kFloat);
        AdamW optimizer(weights, {});
        optimizer.set_master(at::ones({weights.numel()}));
        const float largest = std::numeric_limits<float>::max();
        const GradientNorms norms = optimizer.step(at::full({weights.numel()}, largest), 1.0, 0.1);
        CHECK(std::isfinite(norms.norm.item<double>()));
        CHECK(optimizer.steps() == 1);
        CHECK(at::isfinite(weights.compute_flat()).all().item<bool>());
    }

    TEST_CASE("norms of pieces are those of their weights") {
        model::DraftWeights weights(config(), at::kCPU, at::kFloat);
        AdamW optimizer(weights, {});
        optimizer.set_master(at::ones({weights.numel()}));
        const at::Tensor sums = gradient(weights.numel(), 1);
        std::vector<double> squares(weights.specs().size(), 0.0);
        const GradientNorms norms = optimizer.step(sums.clone(), 1.0, 0.1);
        for (std::size_t i = 0; i < optimizer.pieces().size(); ++i) {
            const double norm = norms.pieces_N[static_cast<std::int64_t>(i)].item<double>();
            squares[static_cast<std::size_t>(optimizer.pieces()[i].weight)] += norm * norm;
        }
        for (std::size_t i = 0; i < squares.size(); ++i) {
            CAPTURE(weights.specs()[i].name);
            const at::Tensor own = weights.view_in(sums, static_cast<std::int64_t>(i));
            CHECK(
                squares[i] ==
                doctest::Approx(own.to(at::kDouble).square().sum().item<double>()).epsilon(1e-12));
        }
    }

    TEST_CASE("gradients of another size are refused") {
        model::DraftWeights weights(config(), at::kCPU, at::kFloat);
        AdamW optimizer(weights, {});
        CHECK_THROWS_AS(optimizer.step(at::zeros({5}), 1.0, 0.1), Error);
    }

    TEST_CASE("twenty steps give the losses, norms and weights of the reference") {
        golden::Options options;
        options.device.name = "cpu:0";
        for (const char* name : {"train20", "train20_loose"}) {
            CAPTURE(name);
            golden::Verdict verdict;
            golden::check_trace(std::string("test/golden/drafter/") + name, options, verdict);
            CHECK(verdict.ok());
        }
    }
}

}  // namespace
}  // namespace dflash::train
