// SPDX-License-Identifier: Apache-2.0
// The proof that training and decoding are about the same thing: a drafter that was trained on few
// texts until it knows them by heart drafts nearly whole blocks of them, and no longer does when
// decoding differs from training in a layer, a position or the mask token.
#include "tiny_run.hpp"

#include <dflash/eval/acceptance.hpp>
#include <dflash/eval/decode_rounds.hpp>
#include <dflash/eval/drafter_source.hpp>
#include <dflash/train/checkpoint.hpp>

#include <ATen/Parallel.h>
#include <algorithm>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>

namespace dflash::train {
namespace {

constexpr std::int64_t kTexts = 64;
constexpr std::int64_t kAnswerTokens = 16;
constexpr std::int64_t kBlockSize = 5;
constexpr std::int64_t kSteps = 120;  // of one row, which holds all texts

/// Prompts of the tiny target, and what it answers.
struct Texts {
    std::unique_ptr<target::TargetModel> target;
    std::vector<eval::DecodeTask> tasks;
    std::vector<std::vector<TokenId>> answers;

    Texts() {
        // The products are so small that threads would only wait for each other.
        at::set_num_threads(1);
        target = target::load_target(
            "test/golden/targets/T1",
            {.device = at::kCPU, .dtype = at::kFloat, .num_layers = 0, .with_head = true});
        std::vector<eval::DecodeTask> candidates;
        for (std::int64_t i = 0; i < 2 * kTexts; ++i) {
            eval::DecodeTask task{i, {}, kAnswerTokens};
            for (std::int64_t t = 0; t < 4 + i % 5; ++t) {
                task.prompt.push_back(static_cast<TokenId>((37 * i + 101 * t + 13 * i * t) % 500));
            }
            candidates.push_back(std::move(task));
        }
        eval::NoDrafts none;
        const eval::DecodeRun run = eval::decode(*target, none, candidates, {.slots = 2 * kTexts});
        for (std::size_t i = 0; i < candidates.size() && std::ssize(tasks) < kTexts; ++i) {
            const std::vector<TokenId>& answer = run.texts[i].emitted;
            // The embedding has a row that the tokenizer has no token for; rows that hold it are
            // refused.
            if (std::count(answer.begin(), answer.end(), 511) == 0) {
                tasks.push_back(candidates[i]);
                answers.push_back(answer);
            }
        }
        REQUIRE(std::ssize(tasks) == kTexts);
    }

    void write(const std::string& path) const {
        std::ofstream file(path);
        for (std::size_t i = 0; i < tasks.size(); ++i) {
            std::vector<TokenId> tokens = tasks[i].prompt;
            tokens.insert(tokens.end(), answers[i].begin(), answers[i].end());
            std::vector<int> mask(tokens.size(), 0);
            std::fill(mask.end() - kAnswerTokens, mask.end(), 1);
            file << fmt::format("{{\"input_ids\": [{}], \"loss_mask\": [{}]}}\n",
                                fmt::join(tokens, ", "),
                                fmt::join(mask, ", "));
        }
    }
};

/// Gives the drafter the features of the position before.
class OnePositionLate final : public eval::DraftSource {
  public:
    OnePositionLate(eval::DrafterSource& source, std::int64_t hidden_size)
        : source_(source), hidden_size_(hidden_size) {}

    std::int64_t block_size() const override { return source_.block_size(); }

    std::span<const std::int64_t> taps() const override { return source_.taps(); }

    void allocate(std::int64_t slots, std::int64_t capacity) override {
        source_.allocate(slots, capacity);
        lengths_.assign(static_cast<std::size_t>(slots), 0);
        // Position p at p + 1; nothing was seen before the first.
        seen_KSCH_ = at::zeros({std::ssize(taps()), slots, capacity + 1, hidden_size_});
    }

    void absorb(const at::Tensor& features_KTH,
                std::span<const std::int32_t> starts,
                std::span<const std::int32_t> slots) override {
        const at::Tensor late_KTH = at::empty_like(features_KTH);
        for (std::size_t i = 0; i < slots.size(); ++i) {
            std::int64_t& length = lengths_[static_cast<std::size_t>(slots[i])];
            const std::int64_t count = starts[i + 1] - starts[i];
            const at::Tensor seen_KCH = seen_KSCH_.select(1, slots[i]);
            seen_KCH.narrow(1, length + 1, count).copy_(features_KTH.narrow(1, starts[i], count));
            late_KTH.narrow(1, starts[i], count).copy_(seen_KCH.narrow(1, length, count));
            length += count;
        }
        source_.absorb(late_KTH, starts, slots);
    }

    void truncate(std::int64_t slot, std::int64_t length) override {
        lengths_[static_cast<std::size_t>(slot)] = length;
        source_.truncate(slot, length);
    }

    std::vector<std::vector<TokenId>> propose(std::span<const eval::SequenceView> sequences,
                                              const eval::ChoiceRule& rule) override {
        return source_.propose(sequences, rule);
    }

  private:
    eval::DrafterSource& source_;
    std::int64_t hidden_size_;
    at::Tensor seen_KSCH_;
    std::vector<std::int64_t> lengths_;
};

double tau_of(const Texts& texts, eval::DraftSource& source) {
    const eval::DecodeRun run = eval::decode(*texts.target, source, texts.tasks, {.slots = kTexts});
    eval::Acceptance acceptance(kBlockSize);
    for (std::size_t i = 0; i < run.texts.size(); ++i) {
        acceptance.add(run.texts[i]);
        // Drafts never change the text.
        CHECK(run.texts[i].emitted == texts.answers[i]);
    }
    return acceptance.tau();
}

std::unique_ptr<model::DraftDecoder> decoder_of(const Texts& texts,
                                                const LoadedDraft& draft,
                                                const model::DraftConfig& config) {
    model::DraftWeights weights(
        draft.config, at::kCPU, at::kFloat, model::DraftWeights::Use::Inference);
    weights.compute_flat().copy_(draft.flat_fp32);
    return std::make_unique<model::DraftDecoder>(
        config,
        model::FrozenEnds{texts.target->embed_VH(), texts.target->head_VH()},
        std::move(weights),
        std::make_shared<tensor::TorchRowOps>());
}

TEST_SUITE("train.overfit") {
    TEST_CASE("a drafter that knows 64 texts by heart is right, and only as it was trained") {
        const Texts texts;
        const TemporaryFolder folder;
        texts.write(folder.path("texts.jsonl"));
        TrainRequest request = tiny_request(folder.path("run"), kSteps);
        Settings& s = request.settings;
        s.run.data = folder.path("texts.jsonl");
        s.eval.fraction = 0;
        s.train.epochs = kSteps;
        s.train.rows_per_step = 1;
        s.train.lr = 5e-3;
        s.train.loss_weights = "uniform";
        s.draft.block_size = kBlockSize;
        s.draft.num_heads = 2;
        s.draft.num_kv_heads = 1;
        s.draft.anchors = 8;
        s.data.row_tokens = 2048;
        s.data.row_anchors = 2048;
        s.data.window = kTexts;
        s.checkpoint.every = {3600};
        REQUIRE(run(request) == 0);
        MESSAGE("loss of the last step: ", losses(folder.path("run")).back());

        const LoadedDraft draft = load_draft(folder.path("run/latest/draft"));
        const auto tau_with = [&](const model::DraftConfig& config) {
            const auto decoder = decoder_of(texts, draft, config);
            eval::DrafterSource source(*decoder, kBlockSize);
            return tau_of(texts, source);
        };
        const double tau = tau_with(draft.config);
        model::DraftConfig next_layers = draft.config;
        for (std::int64_t& layer : next_layers.target_layer_ids) {
            ++layer;
        }
        const double tau_next_layers = tau_with(next_layers);
        model::DraftConfig other_mask = draft.config;
        other_mask.mask_token_id = (draft.config.mask_token_id + 7) % 500;
        const double tau_other_mask = tau_with(other_mask);
        const auto decoder = decoder_of(texts, draft, draft.config);
        eval::DrafterSource right(*decoder, kBlockSize);
        OnePositionLate late(right, draft.config.hidden_size);
        const double tau_late = tau_of(texts, late);

        MESSAGE("tau ",
                tau,
                "; layers shifted by one ",
                tau_next_layers,
                ", features a position late ",
                tau_late,
                ", another mask token ",
                tau_other_mask);
        CHECK(tau >= 0.8 * kBlockSize);
        CHECK(tau_next_layers < 0.5 * tau);
        CHECK(tau_late < 0.5 * tau);
        CHECK(tau_other_mask < 0.5 * tau);
    }
}

}  // namespace
}  // namespace dflash::train
