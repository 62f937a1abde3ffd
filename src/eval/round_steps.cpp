// SPDX-License-Identifier: Apache-2.0
#include "round_steps.hpp"

#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <utility>

namespace dflash::eval {
namespace {

constexpr std::int64_t kColumns = 2;  // slot and length, before the tokens

/// A place for features of T tokens, and who puts them there.
class FeaturePlanes {
  public:
    FeaturePlanes(std::span<const std::int64_t> taps,
                  std::int64_t tokens,
                  const target::TargetModel& model)
        : taps_(taps) {
        if (!taps.empty()) {
            planes_KTH_ = at::empty({std::ssize(taps), tokens, model.config().hidden_size},
                                    model.embed_VH().options());
        }
    }

    target::FeatureSink sink() const {
        return [this](std::int64_t layer, const at::Tensor& tapped_TH) {
            const auto k = std::find(taps_.begin(), taps_.end(), layer) - taps_.begin();
            planes_KTH_[k].copy_(tapped_TH);
        };
    }

    const at::Tensor& planes() const { return planes_KTH_; }

  private:
    std::span<const std::int64_t> taps_;
    at::Tensor planes_KTH_;
};

model::DraftStep draft_step(const at::Tensor& input_SX) {
    return {input_SX.select(1, 0).contiguous(), input_SX.select(1, 1).contiguous()};
}

}  // namespace

RoundSteps::RoundSteps(target::TargetModel& target,
                       target::DecodeCache& cache,
                       DraftSource& source,
                       RoundShapes shapes,
                       const RoundSteps* before)
    : target_(target),
      cache_(cache),
      source_(source),
      on_device_(source.on_device()),
      block_size_(source.block_size()),
      states_([this](const at::Tensor& input_SX) {
          return on_device_->states(draft_step(input_SX),
                                    input_SX.select(1, kColumns).contiguous());
      }),
      blocks_([this](const at::Tensor& input_SX) {
          const model::DraftStep step = draft_step(input_SX);
          const at::Tensor tokens_T = input_SX.narrow(1, kColumns, block_size_).flatten();
          const FeaturePlanes features(source_.taps(), tokens_T.size(0), target_);
          const at::Tensor residual_TH = target_.decode(cache_,
                                                        {.tokens_T = tokens_T,
                                                         .slots_S = step.slots_S,
                                                         .lengths_S = step.lengths_S,
                                                         .taps = source_.taps(),
                                                         .sink = features.sink()});
          if (on_device_ != nullptr) {
              on_device_->absorb_blocks(features.planes(), step);
          }
          return residual_TH;
      }) {
    const bool knows_features = on_device_ != nullptr || source.taps().empty();
    has_fixed_blocks_ =
        knows_features && (shapes == RoundShapes::Fixed ||
                           (shapes == RoundShapes::Graphs && target::decodes_without_host(target)));
    if (!has_fixed_blocks_) {
        return;
    }
    if (shapes == RoundShapes::Fixed) {
        states_.fix_sizes(cache.slots());
        blocks_.fix_sizes(cache.slots());
        return;
    }
    const auto nobody = [&](std::int64_t tokens) {
        std::vector<std::int32_t> row(static_cast<std::size_t>(kColumns + tokens), 0);
        row[0] = narrow<std::int32_t>(cache.slots());
        return tensor::upload(std::span<const std::int32_t>(row), target.embed_VH().device());
    };
    const tensor::StepGraphs* last = before == nullptr ? nullptr : &before->blocks_;
    if (on_device_ != nullptr) {
        states_.capture(cache.slots(), nobody(1), last);
        // What drafts were chosen from is asked for again when the blocks have run.
        last = &states_;
    }
    blocks_.capture(cache.slots(), nobody(block_size_), last);
}

at::Tensor RoundSteps::extend(std::span<const TokenId> tokens,
                              std::span<const std::int32_t> starts,
                              std::span<const std::int32_t> slots) {
    const FeaturePlanes features(source_.taps(), std::ssize(tokens), target_);
    const at::Tensor residual_TH =
        target_.extend(cache_,
                       {.tokens = tokens, .starts = starts, .slots = slots},
                       source_.taps(),
                       features.sink());
    if (features.planes().defined()) {
        source_.absorb(features.planes(), starts, slots);
    }
    return residual_TH;
}

QueuedRound RoundSteps::run(std::span<const SequenceView> sequences, const ChoiceRule& rule) {
    if (on_device_ == nullptr && !has_fixed_blocks_) {
        return run_by_host(sequences, rule);
    }
    QueuedRound round;
    round.starts.push_back(0);
    at::Tensor input_SX;
    if (on_device_ == nullptr) {
        round.drafts.on_host = source_.propose(sequences, rule);
        input_SX = host_input(sequences, &round.drafts.on_host);
    } else {
        input_SX = host_input(sequences, nullptr);
        round.drafts.drafted_SD = on_device_->choose(states_.run(input_SX), sequences, rule);
        input_SX = at::cat({input_SX, round.drafts.drafted_SD.to(at::kInt)}, 1);
    }
    for (const SequenceView& sequence : sequences) {
        cache_.note_appended(sequence.slot, block_size_);
        if (on_device_ != nullptr) {
            on_device_->note_absorbed(sequence.slot, block_size_);
        }
        round.starts.push_back(narrow<std::int32_t>(round.starts.back() + block_size_));
    }
    round.residual_TH = blocks_.run(input_SX);
    return round;
}

/// Blocks as long as their drafts: what fills them up would cost time where there is no graph.
QueuedRound RoundSteps::run_by_host(std::span<const SequenceView> sequences,
                                    const ChoiceRule& rule) {
    QueuedRound round;
    round.drafts.on_host = source_.propose(sequences, rule);
    std::vector<TokenId> tokens;
    std::vector<std::int32_t> slots;
    round.starts.push_back(0);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
        const std::vector<TokenId>& drafts = round.drafts.on_host[i];
        tokens.push_back(sequences[i].tokens.back());
        tokens.insert(tokens.end(), drafts.begin(), drafts.end());
        round.starts.push_back(narrow<std::int32_t>(tokens.size()));
        slots.push_back(sequences[i].slot);
    }
    round.residual_TH = extend(tokens, round.starts, slots);
    return round;
}

/// Slot, length, anchor and, if given, drafts of each sequence, and of nobody up to the rows of a
/// step: int32 on the device. Room and tokens are checked here, which steps do not do.
at::Tensor RoundSteps::host_input(std::span<const SequenceView> sequences,
                                  const std::vector<std::vector<TokenId>>* drafts) const {
    const auto width = static_cast<std::size_t>(kColumns + (drafts == nullptr ? 1 : block_size_));
    const std::int64_t rows = blocks_.rows_for(std::ssize(sequences));
    std::vector<std::int32_t> values;
    const auto add_token = [&](TokenId token) {
        DFLASH_CHECK(token >= 0 && token < target_.config().vocab_size,
                     "token {} is outside the vocabulary of {}",
                     token,
                     target_.config().vocab_size);
        values.push_back(token);
    };
    for (std::size_t i = 0; i < sequences.size(); ++i) {
        const SequenceView& sequence = sequences[i];
        const std::int64_t length = cache_.length(sequence.slot);
        DFLASH_CHECK(length + 1 == std::ssize(sequence.tokens),
                     "{} tokens before an anchor at {}",
                     length,
                     std::ssize(sequence.tokens) - 1);
        values.push_back(sequence.slot);
        values.push_back(narrow<std::int32_t>(length));
        add_token(sequence.tokens.back());
        if (drafts != nullptr) {
            std::for_each((*drafts)[i].begin(), (*drafts)[i].end(), add_token);
        }
        values.resize((i + 1) * width, 0);  // what fills a short block is cut off again
    }
    for (auto nobody = std::ssize(sequences); nobody < rows; ++nobody) {
        values.push_back(narrow<std::int32_t>(cache_.slots()));
        values.resize((static_cast<std::size_t>(nobody) + 1) * width, 0);
    }
    return tensor::upload(std::span<const std::int32_t>(values), target_.embed_VH().device())
        .view({rows, static_cast<std::int64_t>(width)});
}

}  // namespace dflash::eval
