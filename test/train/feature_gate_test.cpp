// SPDX-License-Identifier: Apache-2.0
// Features that are wrong in every way one could think of, each caught and named, and right ones of
// every dense reference target, which pass.
#include "tiny_run.hpp"

#include <dflash/comm/in_process_group.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/random.hpp>
#include <dflash/data/anchors.hpp>
#include <dflash/train/feature_gate.hpp>
#include <dflash/train/torch_worker.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {
namespace {

const std::vector<std::string> kTargets{"T1", "T1b", "T3"};

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

data::PackedRow make_row(std::uint64_t seed, const std::vector<std::int32_t>& lengths) {
    RandomStream stream(seed, Purpose::Test, 0, 0);
    data::PackedRow row;
    row.index = static_cast<std::int64_t>(seed);
    for (const std::int32_t length : lengths) {
        std::vector<TokenId> tokens(static_cast<std::size_t>(length));
        std::generate(
            tokens.begin(), tokens.end(), [&] { return static_cast<TokenId>(stream.below(512)); });
        data::append_document(row, static_cast<SampleId>(row.documents.size()), tokens);
    }
    return row;
}

const std::vector<std::int32_t> kLengths{90, 12, 40};

/// A target whose decoding is changed: what it captures is right.
class DecodesOtherwise final : public target::TargetModel {
  public:
    using Extend = std::function<at::Tensor(target::TargetModel&,
                                            target::DecodeCache&,
                                            const target::Extension&,
                                            std::span<const std::int64_t>,
                                            const target::FeatureSink&)>;
    using Decode = std::function<at::Tensor(
        target::TargetModel&, target::DecodeCache&, const target::DecodeStep&)>;

    DecodesOtherwise(std::unique_ptr<target::TargetModel> right, Extend extend, Decode decode)
        : TargetModel(right->config()),
          right_(std::move(right)),
          extend_(std::move(extend)),
          decode_(std::move(decode)) {}

    void capture(const target::PackedInput& input,
                 std::span<const std::int64_t> taps,
                 const target::FeatureSink& sink) override {
        right_->capture(input, taps, sink);
    }

    std::unique_ptr<target::DecodeCache> make_cache(std::int64_t slots,
                                                    std::int64_t capacity) const override {
        return right_->make_cache(slots, capacity + 2);  // room for what goes wrong
    }

    at::Tensor extend(target::DecodeCache& cache,
                      const target::Extension& input,
                      std::span<const std::int64_t> taps,
                      const target::FeatureSink& sink) override {
        return extend_ ? extend_(*right_, cache, input, taps, sink)
                       : right_->extend(cache, input, taps, sink);
    }

    at::Tensor decode(target::DecodeCache& cache, const target::DecodeStep& step) override {
        return decode_ ? decode_(*right_, cache, step) : right_->decode(cache, step);
    }

    at::Tensor logits(const at::Tensor& x) override { return right_->logits(x); }

    at::Tensor final_norm(const at::Tensor& x) override { return right_->final_norm(x); }

    at::Tensor embed_VH() const override { return right_->embed_VH(); }

    at::Tensor head_VH() const override { return right_->head_VH(); }

    Bytes weight_bytes() const override { return right_->weight_bytes(); }

  private:
    std::unique_ptr<target::TargetModel> right_;
    Extend extend_;
    Decode decode_;
};

using Change =
    std::function<std::unique_ptr<target::TargetModel>(std::unique_ptr<target::TargetModel>)>;

/// A target and a drafter's slot on one CPU device, and the gate between them.
class Scene {
  public:
    explicit Scene(const std::string& target,
                   std::optional<double> tolerance = {},
                   at::ScalarType dtype = at::kFloat,
                   const Change& change = {})
        : group_(1, first_error_) {
        const gpu::Device device{.name = "cpu:0"};
        worker_ = std::make_unique<gpu::Worker>(
            device,
            first_error_,
            gpu::WorkerOptions{.on_start = [device] { set_up_torch(device); }, .pin = false});
        const std::string folder = "test/golden/targets/" + target;
        const std::int64_t num_layers = target::TargetConfig::read(folder).num_layers;
        // Of the last layer nothing is ever tapped.
        std::vector<std::int64_t> taps(static_cast<std::size_t>(num_layers - 1));
        std::iota(taps.begin(), taps.end(), 0);
        worker_->call([&] {
            auto model = target::load_target(folder, {.device = at::kCPU, .dtype = dtype});
            hidden_size_ = model->config().hidden_size;
            if (change) {
                model = change(std::move(model));
            }
            targets_.push_back(std::make_unique<TargetReplica>(*worker_, std::move(model), taps));
        });
        ranks_.push_back(std::make_unique<DrafterRank>(*worker_, 0, group_));
        slot_.planes_KTH =
            at::full({num_layers - 1, 256, hidden_size_}, 7.0F, at::TensorOptions().dtype(dtype));
        GateSettings settings;
        settings.tolerance = tolerance;
        gate_ = std::make_unique<FeatureGate>(
            targets_,
            ranks_,
            [](SampleId id) { return "data.jsonl:" + std::to_string(id + 1); },
            settings);
    }

    /// What the gate says of a row's features after `change`; nothing if they pass.
    std::optional<Error> judge(const data::PackedRow& row,
                               const std::function<void(const at::Tensor& planes_KTH)>& change) {
        return judge_captured(row, row, change);
    }

    /// The same where the target was given another row.
    std::optional<Error> judge_captured(
        const data::PackedRow& row,
        const data::PackedRow& captured,
        const std::function<void(const at::Tensor& planes_KTH)>& change = [](const auto&) {}) {
        worker_->call([&] {
            targets_.front()->capture(captured, slot_);
            change(slot_.row_planes(row.num_tokens()));
        });
        try {
            gate_->check(row, slot_, *ranks_.front(), /*step=*/0, /*trained_s=*/0);
        } catch (const Error& error) {
            return error;
        }
        return std::nullopt;
    }

    target::TargetModel& model() { return targets_.front()->model(); }

    FeatureGate& gate() { return *gate_; }

  private:
    FirstError first_error_;
    comm::InProcessGroup group_;
    std::unique_ptr<gpu::Worker> worker_;
    std::vector<std::unique_ptr<TargetReplica>> targets_;
    std::vector<std::unique_ptr<DrafterRank>> ranks_;
    std::int64_t hidden_size_ = 0;
    FeatureSlot slot_;
    std::unique_ptr<FeatureGate> gate_;
};

const float kNan = std::numeric_limits<float>::quiet_NaN();

struct Mutation {
    const char* name;
    std::function<void(const at::Tensor& planes_KTH)> change;
    const char* said;
};

/// What can go wrong between the target and the slot. T1b has two tapped layers, the fewest.
const std::vector<Mutation>& mutations() {
    static const std::vector<Mutation> all{
        {"a plane of zeros", [](const at::Tensor& x) { x[1].zero_(); }, "layer 1 are zero at 142"},
        {"the end of a plane not written",
         [](const at::Tensor& x) { x[0].narrow(0, 130, 12).zero_(); },
         "layer 0 are zero at 12 of 142 positions, the first 130"},
        {"NaN", [](const at::Tensor& x) { x[1].fill_(kNan); }, "layer 1 are NaN or infinite"},
        {"infinity in most positions",
         [](const at::Tensor& x) {
             x[0].narrow(0, 20, 122).fill_(std::numeric_limits<float>::infinity());
         },
         "layer 0 are NaN or infinite at 122 of 142 positions, the first 20"},
        {"NaN where the target computes none",
         [](const at::Tensor& x) { x[0].narrow(0, 0, 40).fill_(kNan); },
         "layer 0 are not those of the row's tokens"},
        {"one position everywhere",
         [](const at::Tensor& x) { x[1].copy_(x[1][5].clone().expand_as(x[1])); },
         "layer 1 are those of the position before at "},
        {"every position twice",
         [](const at::Tensor& x) {
             for (std::int64_t t = 1; t < x.size(1); t += 2) {
                 x.select(1, t).copy_(x.select(1, t - 1));
             }
         },
         "layer 0 are those of the position before"},
        {"one layer twice",
         [](const at::Tensor& x) { x[1].copy_(x[0]); },
         "layer 1 equal those of layer 0 at 142 of 142"},
        {"layers in another order",
         [](const at::Tensor& x) { x.copy_(x.flip(0).clone()); },
         "layer 0 are those of layer "},
        {"shifted to the right by one",
         [](const at::Tensor& x) { x.copy_(x.roll(1, 1)); },
         "layer 0 are shifted by 1 position: position t holds those of t - 1"},
        {"shifted to the left by one",
         [](const at::Tensor& x) { x[1].copy_(x[1].roll(-1, 0)); },
         "layer 1 are shifted by 1 position: position t holds those of t + 1"},
        {"shifted by two",
         [](const at::Tensor& x) { x.copy_(x.roll(2, 1)); },
         "shifted by 2 positions: position t holds those of t - 2"},
        {"backwards",
         [](const at::Tensor& x) { x.copy_(x.flip(1).clone()); },
         "not those of the row's tokens"},
        {"documents changed places",
         [](const at::Tensor& x) { x.narrow(1, 0, 40).copy_(x.narrow(1, 102, 40).clone()); },
         "for document 0 of the row are those of document 2"},
        {"doubled", [](const at::Tensor& x) { x[1].mul_(2); }, "layer 1 are scaled by 2:"},
        {"of the other sign", [](const at::Tensor& x) { x.neg_(); }, "scaled by -1"},
        {"after a norm",
         [](const at::Tensor& x) { x.div_(x.square().mean(-1, /*keepdim=*/true).sqrt()); },
         "layer 0 are not those of the row's tokens"},
        {"dimensions changed places",
         [](const at::Tensor& x) { x.copy_(x.roll(1, 2)); },
         "not those of the row's tokens"},
        {"the last document not written",
         [](const at::Tensor& x) { x.narrow(1, 102, 40).copy_(x.narrow(1, 20, 40).clone()); },
         "not those of the row's tokens"},
        {"rounded to eight bits",
         [](const at::Tensor& x) {
             const at::Tensor step = x.abs().amax() / 127;
             x.div_(step).round_().mul_(step);
         },
         "not those of the row's tokens"},
        {"a hundredth of noise",
         [](const at::Tensor& x) {
             at::manual_seed(1);
             x.add_(at::randn_like(x) * x.std() * 0.01);
         },
         "not those of the row's tokens"},
    };
    return all;
}

}  // namespace

TEST_SUITE("train.feature_gate") {
    TEST_CASE("features of every dense target pass, of short, long and many documents") {
        for (const std::string& target : kTargets) {
            CAPTURE(target);
            Scene scene(target);
            std::uint64_t seed = 1;
            for (const std::vector<std::int32_t>& lengths :
                 {kLengths, {1}, {200}, {2, 3, 1, 4}, {64, 64}, {65, 1}}) {
                const data::PackedRow row = make_row(seed++, lengths);
                const auto fault = scene.judge(row, [](const auto&) {});
                CHECK_MESSAGE(!fault, (fault ? fault->what() : ""));
            }
            // The same token over and over is no fault of the features.
            data::PackedRow same = make_row(seed, {100});
            std::fill(same.tokens.begin(), same.tokens.end(), 5);
            CHECK_FALSE(scene.judge(same, [](const auto&) {}));
        }
    }

    TEST_CASE("features in bf16 pass with the tolerance for bf16, and noise does not") {
        for (const std::string& target : kTargets) {
            CAPTURE(target);
            Scene scene(target, 0.2, at::kBFloat16);
            for (std::uint64_t seed = 1; seed < 8; ++seed) {
                const auto fault = scene.judge(make_row(seed, kLengths), [](const auto&) {});
                CHECK_MESSAGE(!fault, (fault ? fault->what() : ""));
            }
            CHECK(scene.judge(make_row(9, kLengths), [](const at::Tensor& x) {
                at::manual_seed(1);
                x.add_(at::randn_like(x) * x.std() * 0.5);
            }));
        }
    }

    TEST_CASE("every mutation is caught and named") {
        for (const std::string& target : kTargets) {
            CAPTURE(target);
            Scene scene(target);
            REQUIRE_FALSE(scene.judge(make_row(1, kLengths), [](const auto&) {}));
            for (const Mutation& mutation : mutations()) {
                CAPTURE(mutation.name);
                const std::optional<Error> fault =
                    scene.judge(make_row(2, kLengths), mutation.change);
                REQUIRE(fault);
                CAPTURE(fault->what());
                CHECK(contains(fault->parts().what, mutation.said));
                CHECK((fault->kind() == ErrorKind::Internal));
                CHECK(contains(fault->parts().where, "row 2"));
                CHECK(contains(fault->parts().where, "data.jsonl:1"));
                CHECK_FALSE(fault->parts().hint.empty());
            }
            CHECK_FALSE(scene.judge(make_row(2, kLengths), [](const auto&) {}));
        }
    }

    TEST_CASE("decoding that differs from the row's forward is caught, whatever is wrong in it") {
        struct Fault {
            const char* name;
            DecodesOtherwise::Extend extend;
            DecodesOtherwise::Decode decode;
            const char* said;
        };

        const auto forget = [](target::DecodeCache& cache, std::int32_t slot) {
            if (cache.length(slot) > 0) {
                cache.truncate(slot, cache.length(slot) - 1);
            }
        };
        const std::vector<Fault> faults{
            {"the cache forgets its last token",
             [&](auto& right, auto& cache, const auto& input, auto taps, const auto& sink) {
                 forget(cache, input.slots[0]);
                 return right.extend(cache, input, taps, sink);
             },
             {},
             "tokens one by one behind a prompt of"},
            {"the cache begins with a token that is none",
             [](auto& right, auto& cache, const auto& input, auto taps, const auto& sink) {
                 if (cache.length(input.slots[0]) == 0) {
                     const std::vector<TokenId> extra{7};
                     const std::vector<std::int32_t> starts{0, 1};
                     right.extend(
                         cache, {.tokens = extra, .starts = starts, .slots = input.slots}, {}, {});
                     // It notes as many tokens as it was given.
                     return right.extend(
                         cache, input, taps, [&](std::int64_t layer, const at::Tensor& x) {
                             cache.truncate(input.slots[0], 0);
                             sink(layer, x);
                         });
                 }
                 return right.extend(cache, input, taps, sink);
             },
             {},
             "for a prompt of"},
            {"another slot's keys",
             {},
             [](auto& right, auto& cache, const auto& step) {
                 return right.decode(cache,
                                     {step.tokens_T, at::zeros_like(step.slots_S), step.lengths_S});
             },
             "the decode step gives another residual"},
            {"positions one later in the decode step",
             {},
             [](auto& right, auto& cache, const auto& step) {
                 return right.decode(cache, {step.tokens_T, step.slots_S, step.lengths_S + 1});
             },
             "the decode step gives another residual"},
            {"lengths that do not grow",
             {},
             [](auto& right, auto& cache, const auto& step) {
                 return right.decode(cache, {step.tokens_T, step.slots_S, step.lengths_S - 1});
             },
             "the decode step gives another residual"},
        };
        for (const std::string& target : kTargets) {
            CAPTURE(target);
            for (const Fault& fault : faults) {
                CAPTURE(std::string(fault.name));
                Scene scene(target, {}, at::kFloat, [&](auto right) {
                    return std::make_unique<DecodesOtherwise>(
                        std::move(right), fault.extend, fault.decode);
                });
                const auto found = scene.judge(make_row(1, kLengths), [](const auto&) {});
                REQUIRE(found);
                CAPTURE(found->what());
                CHECK(contains(found->parts().what, fault.said));
                CHECK((found->kind() == ErrorKind::Internal));
                CHECK(contains(found->parts().where, "row 1"));
            }
            // The wrapper itself changes nothing.
            Scene scene(target, {}, at::kFloat, [](auto right) {
                return std::make_unique<DecodesOtherwise>(
                    std::move(right), DecodesOtherwise::Extend(), DecodesOtherwise::Decode());
            });
            CHECK_FALSE(scene.judge(make_row(1, kLengths), [](const auto&) {}));
        }
    }

    TEST_CASE("another row's features are known by that row, if it was seen") {
        Scene scene("T1");
        const data::PackedRow first = make_row(1, kLengths);
        const data::PackedRow second = make_row(2, kLengths);
        auto fault = scene.judge_captured(second, first);
        REQUIRE(fault);
        CHECK(contains(fault->parts().what, "not those of the row's tokens"));
        REQUIRE_FALSE(scene.judge_captured(first, first));
        fault = scene.judge_captured(second, first);
        REQUIRE(fault);
        CHECK(contains(fault->parts().what, "are another row's: those of row 1"));
    }

    TEST_CASE("a target that is given the row otherwise is caught") {
        Scene scene("T1");
        const data::PackedRow row = make_row(1, kLengths);
        data::PackedRow other = row;
        // Documents see each other.
        other.documents = {{.id = 0, .begin = 0, .length = 142}};
        const std::optional<Error> fault = scene.judge_captured(row, other);
        REQUIRE(fault);
        CHECK(contains(fault->parts().cause, "document 2"));
        other = row;
        other.tokens[3] = (other.tokens[3] + 1) % 512;
        CHECK(scene.judge_captured(row, other));
    }

    TEST_CASE("what the target itself computes is told from what became of it") {
        Scene scene("T1");
        scene.model().embed_VH().zero_();
        const std::optional<Error> fault = scene.judge(make_row(1, kLengths), [](const auto&) {});
        REQUIRE(fault);
        CHECK((fault->kind() == ErrorKind::Numeric));
        CHECK(contains(fault->parts().what, "zero at 142 of 142"));
        CHECK(contains(fault->parts().cause, "the target itself computes it"));
        CHECK(contains(fault->parts().hint, "weights"));
        Scene broken("T1");
        broken.model().embed_VH().fill_(kNan);
        const auto not_finite = broken.judge(make_row(1, kLengths), [](const auto&) {});
        REQUIRE(not_finite);
        CHECK((not_finite->kind() == ErrorKind::Numeric));
    }

    TEST_CASE("a sample on which the target overflows is left to the step") {
        Scene scene("T1");
        const data::PackedRow row = make_row(1, kLengths);
        scene.model().embed_VH()[row.tokens[110]].fill_(kNan);
        CHECK_FALSE(scene.judge(row, [](const auto&) {}));
    }

    TEST_CASE("is due for the rows of the first step and then once in a while") {
        Scene scene("T1");
        FeatureGate& gate = scene.gate();
        CHECK(gate.due(40, 1000));
        REQUIRE_FALSE(scene.judge(make_row(1, kLengths), [](const auto&) {}));  // at step 0, 0 s
        CHECK(gate.due(0, 5));
        CHECK_FALSE(gate.due(1, 5));
        CHECK_FALSE(gate.due(9, 599));
        CHECK(gate.due(9, 600));
    }
}

namespace {

/// A run whose features are changed from row `from` on.
std::string fault_of_run(const std::string& folder, std::int64_t from, ErrorKind kind) {
    TrainRequest request = tiny_request(folder, 12);
    request.settings.gate.every = {1e-6};
    request.on_features = [from](const data::PackedRow& row, const FeatureSlot& slot) {
        if (row.index >= from) {
            const at::Tensor planes_KTH = slot.row_planes(row.num_tokens());
            planes_KTH.copy_(planes_KTH.roll(1, 1));
        }
    };
    try {
        run(request);
    } catch (const Error& error) {
        CHECK((error.kind() == kind));
        return error.what();
    }
    return "the run ended well";
}

}  // namespace

TEST_SUITE("train.feature_gate.run") {
    TEST_CASE("a run with right features says so and goes on") {
        const TemporaryFolder folder;
        TrainRequest request = tiny_request(folder.path("a"), 3);
        request.settings.gate.every = {1e-6};
        REQUIRE(run(request) == 0);
        const std::string log = file_bytes(folder.path("a") + "/console.log");
        CHECK(contains(log, "features  of the first row are those that the target computes"));
        CHECK(losses(folder.path("a")).size() == 3);
        // It changes nothing.
        TrainRequest rarely = tiny_request(folder.path("b"), 3);
        REQUIRE(run(rarely) == 0);
        CHECK(losses(folder.path("a")) == losses(folder.path("b")));
    }

    TEST_CASE("wrong features end a run before its first step, or where they begin") {
        const TemporaryFolder folder;
        const std::string message = fault_of_run(folder.path("a"), 0, ErrorKind::Internal);
        CHECK(contains(message, "shifted by 1 position: position t holds those of t - 1"));
        CHECK(contains(message, "row 0"));
        CHECK(metrics(folder.path("a"), "step").empty());

        const std::string later = fault_of_run(folder.path("b"), 20, ErrorKind::Internal);
        CHECK(contains(later, "shifted by 1 position"));
        CHECK(metrics(folder.path("b"), "step").size() >= 3);
    }
}

}  // namespace dflash::train
