// SPDX-License-Identifier: Apache-2.0
// Steps of one, two and three drafters, with rows that are not finite among them.
#include <dflash/comm/in_process_group.hpp>
#include <dflash/train/checkpoint_writer.hpp>
#include <dflash/train/drafter_rank.hpp>
#include <dflash/train/torch_worker.hpp>

#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <vector>
#include <warm_up_row.hpp>

namespace dflash::train {
namespace {

constexpr std::int64_t kTokens = 40;

model::DraftConfig config() {
    model::DraftConfig result;
    result.hidden_size = 32;
    result.intermediate_size = 48;
    result.num_heads = 2;
    result.num_kv_heads = 1;
    result.head_dim = 16;
    result.vocab_size = 24;
    result.mask_token_id = 1;
    result.block_size = 4;
    result.target_layer_ids = {1, 2};
    result.num_target_layers = 4;
    result.layer_types = {model::LayerType::Full, model::LayerType::Full};
    return result;
}

const data::BlockRule kRule{.block_size = 4, .loss_decay_gamma = 4, .max_anchors = 5};

/// Two documents with five blocks each, and a third one that no block sees.
data::PackedRow make_row() {
    data::PackedRow row = make_warm_up_row(kRule, kTokens - 8, 10);
    const std::vector<TokenId> unseen(8, 2);
    data::append_document(row, /*id=*/2, unseen);
    return row;
}

at::Tensor features(int seed) {
    at::manual_seed(static_cast<std::uint64_t>(seed));
    return at::randn({config().num_features(), kTokens, config().hidden_size});
}

at::Tensor random_ends() {
    at::manual_seed(7);
    return at::randn({config().vocab_size, config().hidden_size});
}

/// Drafters on CPU devices, with one row each a step.
class Drafters {
  public:
    explicit Drafters(int count,
                      const at::Tensor& embed_VH = random_ends(),
                      const at::Tensor& head_VH = random_ends(),
                      model::HeadPrecision head_precision = model::HeadPrecision::Compute)
        : group_(count, first_error_) {
        for (int rank = 0; rank < count; ++rank) {
            const gpu::Device device{.name = "cpu:" + std::to_string(rank)};
            workers_.push_back(std::make_unique<gpu::Worker>(
                device,
                first_error_,
                gpu::WorkerOptions{.on_start = [device] { set_up_torch(device); }, .pin = false}));
            ranks_.push_back(std::make_unique<DrafterRank>(*workers_.back(), rank, group_));
            workers_.back()->call([&] {
                ranks_.back()->build(config(),
                                     {embed_VH, head_VH},
                                     {},
                                     {},
                                     model::make_torch_paths(at::kCPU),
                                     /*recompute_layers=*/0,
                                     head_precision);
                ranks_.back()->set_weights(model::make_initial_weights(config(), 1));
            });
        }
    }

    /// One step: of every drafter the features of its row, and the row itself if it is another one.
    std::vector<StepValues> step(const std::vector<at::Tensor>& features_KTH,
                                 const std::vector<data::PackedRow>& rows) {
        std::vector<StepValues> values(ranks_.size());
        double weight_sum = 0;
        for (const data::PackedRow& row : rows) {
            weight_sum += row.blocks.weight_sum;
        }
        std::vector<std::promise<void>> done(ranks_.size());
        for (std::size_t i = 0; i < ranks_.size(); ++i) {
            ranks_[i]->worker().post([&, i, weight_sum] {
                FeatureSlot slot;
                slot.planes_KTH = features_KTH[i];
                ranks_[i]->add_row(rows[i], slot);
                values[i] = ranks_[i]->finish_step(1e-2, weight_sum).read();
                done[i].set_value();
            });
        }
        for (std::promise<void>& promise : done) {
            promise.get_future().wait();
        }
        return values;
    }

    std::vector<StepValues> step(const std::vector<at::Tensor>& features_KTH) {
        return step(features_KTH, std::vector<data::PackedRow>(ranks_.size(), make_row()));
    }

    std::vector<StepValues> good_step(int seed) {
        std::vector<at::Tensor> all;
        for (std::size_t i = 0; i < ranks_.size(); ++i) {
            all.push_back(features(seed * 10 + static_cast<int>(i)));
        }
        return step(all);
    }

    OptimizerState state(std::size_t rank) {
        return workers_[rank]->call([&] {
            OptimizerState state = make_snapshot_buffers(ranks_[rank]->drafter().weights().numel(),
                                                         workers_[rank]->device());
            ranks_[rank]->snapshot(state);
            return state;
        });
    }

    DrafterRank& rank(std::size_t i) { return *ranks_[i]; }

  private:
    FirstError first_error_;
    comm::InProcessGroup group_;
    std::vector<std::unique_ptr<DrafterRank>> ranks_;
    std::vector<std::unique_ptr<gpu::Worker>> workers_;
};

void check_same(const OptimizerState& got, const OptimizerState& expected) {
    CHECK(got.steps == expected.steps);
    CHECK(got.master.equal(expected.master));
    CHECK(got.exp_avg.equal(expected.exp_avg));
    CHECK(got.exp_avg_sq.equal(expected.exp_avg_sq));
}

struct Poison {
    const char* what;
    std::function<void(at::Tensor& features_KTH)> apply;
};

const std::vector<Poison> kPoisons = {
    {"NaN in a token that blocks see", [](at::Tensor& f) { f[0][3][5] = NAN; }},
    {"infinity in a token that blocks see", [](at::Tensor& f) { f[1][0][0] = -INFINITY; }},
    {"infinity in a token that no block sees",
     [](at::Tensor& f) { f[1][kTokens - 1][31] = INFINITY; }},
    {"NaN in a token that no block sees", [](at::Tensor& f) { f[0][kTokens - 2][0] = NAN; }},
};

}  // namespace

TEST_SUITE("train.drafter_rank") {
    TEST_CASE("a rehearsal leaves nothing behind once the weights are set") {
        Drafters rehearsed(1);
        Drafters plain(1);
        DrafterRank& rank = rehearsed.rank(0);
        rank.worker().call([&] {
            FeatureSlot slot = rank.make_slot(config().num_features(), kTokens, 32);
            rank.rehearse(make_row(), slot);
            // With numbers as training has them, not with what was in the memory.
            const at::Tensor gradients = rank.drafter().weights().gradient_flat();
            CHECK(gradients.isfinite().all().item<bool>());
            CHECK(gradients.abs().max().item<double>() > 0);
            CHECK(slot.planes_KTH.std().item<double>() == doctest::Approx(1).epsilon(0.1));
            rank.set_weights(model::make_initial_weights(config(), 1));
        });
        CHECK(rehearsed.good_step(3).front().norm == plain.good_step(3).front().norm);
        check_same(rehearsed.state(0), plain.state(0));
    }

    TEST_CASE("what comes before training makes evaluation's products with the head, too") {
        // Training makes its own in 8 bits, so nothing else would load or time those in full.
        const at::Tensor head_VH = random_ends();
        Drafters drafters(1, random_ends(), head_VH, model::HeadPrecision::Float8);
        DrafterRank& rank = drafters.rank(0);
        rank.worker().call([&] {
            FeatureSlot slot = rank.make_slot(config().num_features(), kTokens, 32);
            slot.planes_KTH.normal_();
            // Whoever multiplies with the head itself fails from here on.
            head_VH.resize_({0, config().hidden_size});
            CHECK_NOTHROW(rank.add_row(make_row(), slot));
            CHECK_THROWS(rank.rehearse(make_row(), slot));
            CHECK_THROWS(rank.warm_up(make_row(), slot));
        });
    }

    TEST_CASE("a row that is not finite makes all drafters skip the step, bit for bit") {
        for (const int count : {1, 2, 3}) {
            CAPTURE(count);
            Drafters disturbed(count);
            Drafters undisturbed(count);
            int seed = 0;
            for (const Poison& poison : kPoisons) {
                CAPTURE(poison.what);
                ++seed;
                disturbed.good_step(seed);
                undisturbed.good_step(seed);
                std::vector<at::Tensor> features_of;
                for (int i = 0; i < count; ++i) {
                    features_of.push_back(features(1000 + i));
                }
                poison.apply(features_of.back());
                const std::vector<StepValues> values = disturbed.step(features_of);
                for (std::size_t i = 0; i < values.size(); ++i) {
                    CAPTURE(i);
                    CHECK_FALSE(std::isfinite(values[i].norm));
                    CHECK(std::isfinite(values[i].rows.at(0).largest_feature) ==
                          (i + 1 < values.size()));
                    check_same(disturbed.state(i), undisturbed.state(i));
                    CHECK(undisturbed.state(i).steps == seed);
                }
            }
            const double norm = disturbed.good_step(99).front().norm;
            CHECK(std::isfinite(norm));
            CHECK(norm == undisturbed.good_step(99).front().norm);
            check_same(disturbed.state(0), undisturbed.state(0));
        }
    }

    TEST_CASE("a loss that is not finite skips the step on all drafters, whatever the gradients") {
        // Two logits of about 2.3e38 with opposite signs, the label's the negative one: they are
        // further apart than fp32 reaches, so the loss is infinite; the probabilities are 1 and 0,
        // so the gradients are finite.
        const at::Tensor embed_VH = random_ends();
        embed_VH.select(1, 0).fill_(2.5);
        const at::Tensor head_VH = at::zeros_like(embed_VH);
        head_VH[0][0] = -1e38;
        head_VH[3][0] = 1e38;
        Drafters drafters(2, embed_VH, head_VH);
        data::PackedRow small = make_row();  // its labels are all token 0
        small.blocks.weight_sum = 0;
        for (float& weight : small.blocks.weights) {
            weight = 1e-9F;  // the gradients are so large that their sums would overflow
            small.blocks.weight_sum += 1e-9;
        }
        data::PackedRow without_labels = make_row();
        without_labels.blocks.head_rows.clear();
        without_labels.blocks.labels.clear();
        without_labels.blocks.weights.clear();
        without_labels.blocks.weight_sum = 0;
        const std::vector<StepValues> values =
            drafters.step({features(1), features(2)}, {small, without_labels});
        CHECK(std::isinf(values[0].rows.at(0).loss));
        CHECK(values[1].rows.at(0).loss == 0);
        for (std::size_t i = 0; i < 2; ++i) {
            CHECK_FALSE(std::isfinite(values[i].norm));
            CHECK(drafters.state(i).steps == 0);
            // Only the piece with the element that carries the loss is not finite.
            CHECK_FALSE(std::isfinite(values[i].piece_norms.front()));
            for (std::size_t piece = 1; piece < values[i].piece_norms.size(); ++piece) {
                CHECK(std::isfinite(values[i].piece_norms[piece]));
            }
        }
    }

    TEST_CASE("the probe of a row turns when its gradient does, and the pieces name the weight") {
        Drafters drafters(1);
        const std::vector<std::string> names = drafters.rank(0).piece_names();
        const auto place = [&](const std::string& name) {
            return std::find(names.begin(), names.end(), name) - names.begin();
        };
        REQUIRE(place("layers.1.mlp.down_proj.weight") < std::ssize(names));
        DrafterRank& rank = drafters.rank(0);
        const data::PackedRow row = make_row();
        const StepValues values = rank.worker().call([&] {
            FeatureSlot slot;
            slot.planes_KTH = features(1);
            rank.add_row(row, slot);
            // As if the backward pass of the second row overflowed in the upper layer.
            const std::int64_t bad =
                rank.drafter().weights().index("layers.1.mlp.down_proj.weight");
            rank.drafter().weights().gradient(bad)[0][0] = INFINITY;
            rank.drafter().weights().gradient(
                rank.drafter().weights().index("hidden_norm.weight"))[3] = NAN;
            rank.add_row(row, slot);
            return rank.finish_step(1e-2, 2 * row.blocks.weight_sum).read();
        });
        REQUIRE(values.rows.size() == 2);
        CHECK(std::isfinite(values.rows[0].gradient_probe));
        CHECK_FALSE(std::isfinite(values.rows[1].gradient_probe));
        CHECK(std::isfinite(values.rows[1].loss));
        for (std::size_t i = 0; i < names.size(); ++i) {
            CAPTURE(names[i]);
            const bool bad =
                names[i] == "layers.1.mlp.down_proj.weight" || names[i] == "hidden_norm.weight";
            CHECK(std::isfinite(values.piece_norms.at(i)) != bad);
        }
    }

    TEST_CASE("a state that is set again continues in the same bits, skipped steps included") {
        Drafters whole(2);
        Drafters resumed(2);
        whole.good_step(1);
        std::vector<at::Tensor> bad{features(5), features(6)};
        bad[0][0][0][0] = NAN;
        whole.step(bad);
        for (std::size_t i = 0; i < 2; ++i) {
            const OptimizerState state = whole.state(i);
            CHECK(state.steps == 1);
            resumed.rank(i).worker().call([&] { resumed.rank(i).set_state(state); });
        }
        whole.good_step(2);
        resumed.good_step(2);
        check_same(resumed.state(1), whole.state(1));
        CHECK(whole.state(0).steps == 2);
    }
}

}  // namespace dflash::train
