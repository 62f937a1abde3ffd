// SPDX-License-Identifier: Apache-2.0
#include "block_verifier.hpp"
#include "logit_chunks.hpp"
#include "token_uniform.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/random.hpp>
#include <dflash/eval/drafter_source.hpp>
#include <dflash/tensor/bridge.hpp>

namespace dflash::eval {

DrafterSource::DrafterSource(model::DraftDecoder& decoder, std::int64_t block_size)
    : decoder_(decoder), block_size_(block_size) {
    DFLASH_CHECK(block_size >= 2 && block_size <= decoder.config().block_size,
                 "blocks of {}, the drafter was made for {}",
                 block_size,
                 decoder.config().block_size);
}

std::span<const std::int64_t> DrafterSource::taps() const {
    return decoder_.config().target_layer_ids;
}

void DrafterSource::allocate(std::int64_t slots, std::int64_t capacity) {
    cache_.reset();  // first give back, then take
    cache_ = decoder_.make_cache(slots, capacity);
}

void DrafterSource::absorb(const at::Tensor& features_KTH,
                           std::span<const std::int32_t> starts,
                           std::span<const std::int32_t> slots) {
    decoder_.append_context(*cache_, {features_KTH, starts, slots});
}

void DrafterSource::truncate(std::int64_t slot, std::int64_t length) {
    cache_->truncate(slot, length);
}

std::vector<std::vector<TokenId>> DrafterSource::propose(std::span<const SequenceView> sequences,
                                                         const ChoiceRule& rule) {
    std::vector<std::int32_t> slots;
    std::vector<TokenId> anchors;
    for (const SequenceView& sequence : sequences) {
        slots.push_back(sequence.slot);
        anchors.push_back(sequence.tokens.back());
        DFLASH_CHECK(cache_->length(sequence.slot) + 1 == std::ssize(sequence.tokens),
                     "{} tokens of context before an anchor at {}",
                     cache_->length(sequence.slot),
                     std::ssize(sequence.tokens) - 1);
    }
    const at::Tensor drafted_SD =
        choose(decoder_.propose(*cache_, slots, anchors, block_size_), sequences, rule);
    return split_drafts(drafted_SD.to(at::kCPU, at::kInt));
}

at::Tensor DrafterSource::states(const model::DraftStep& step, const at::Tensor& anchors_S) {
    return decoder_.propose(*cache_, step, anchors_S, block_size_);
}

at::Tensor DrafterSource::choose(const at::Tensor& states_RH,
                                 std::span<const SequenceView> sequences,
                                 const ChoiceRule& rule) {
    sampling_ = rule.sampling;
    hidden_RH_ = states_RH;
    const std::int64_t D = block_size_ - 1;
    const std::int64_t S = div_exact(states_RH.size(0), D);
    const at::Tensor drafted_SD = at::zeros({S, D}, states_RH.options().dtype(at::kLong));
    const bool greedy = rule.sampling.greedy();
    for_logit_chunks(
        // Drafts for nobody make shapes of fewer kinds, which libraries have met before.
        greedy ? S : std::ssize(sequences),
        D,
        decoder_.config().vocab_size,
        states_RH.device(),
        [&](auto first, auto count) {
            const at::Tensor hidden_CH = states_RH.narrow(0, first * D, count * D);
            at::Tensor chosen_C;
            if (greedy) {
                chosen_C = decoder_.logits(hidden_CH).argmax(1);
            } else {
                std::vector<float> uniforms;
                for (std::int64_t i = first; i < first + count; ++i) {
                    const SequenceView& sequence = sequences[static_cast<std::size_t>(i)];
                    for (std::int64_t k = 0; k < D; ++k) {
                        uniforms.push_back(token_uniform(rule.seed,
                                                         sequence.id,
                                                         std::ssize(sequence.tokens) + k,
                                                         TokenUniform::Draft));
                    }
                }
                chosen_C =
                    target::draw(probabilities(hidden_CH), std::span(std::as_const(uniforms)));
            }
            drafted_SD.narrow(0, first, count).copy_(chosen_C.view({count, D}));
        });
    return drafted_SD;
}

void DrafterSource::absorb_blocks(const at::Tensor& features_KTH, const model::DraftStep& step) {
    decoder_.append_blocks(*cache_, step, features_KTH);
}

void DrafterSource::note_absorbed(std::int64_t slot, std::int64_t count) {
    cache_->note_appended(slot, count);
}

at::Tensor DrafterSource::distributions(std::int64_t first, std::int64_t count) {
    if (sampling_.greedy()) {
        return {};
    }
    const std::int64_t D = block_size_ - 1;
    const at::Tensor probabilities_RV = probabilities(hidden_RH_.narrow(0, first * D, count * D));
    return probabilities_RV.view({count, D, -1});
}

at::Tensor DrafterSource::probabilities(const at::Tensor& hidden_RH) const {
    const std::vector<target::Sampling> rules(static_cast<std::size_t>(hidden_RH.size(0)),
                                              sampling_);
    return target::probabilities(decoder_.logits(hidden_RH), rules);
}

}  // namespace dflash::eval
