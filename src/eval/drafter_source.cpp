// SPDX-License-Identifier: Apache-2.0
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
    sampling_ = rule.sampling;
    hidden_RH_ = decoder_.propose(*cache_, slots, anchors, block_size_);
    const std::int64_t D = block_size_ - 1;
    const std::int64_t H = hidden_RH_.size(1);
    const auto S = std::ssize(sequences);
    const at::Tensor drafted_SD = at::empty({S, D}, hidden_RH_.options().dtype(at::kLong));
    for_logit_chunks(
        S, D, decoder_.config().vocab_size, hidden_RH_.device(), [&](auto first, auto count) {
            const at::Tensor hidden_CH =
                hidden_RH_.view({S, D, H}).narrow(0, first, count).reshape({count * D, H});
            at::Tensor chosen_C;
            if (rule.sampling.greedy()) {
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
    const at::Tensor on_host = drafted_SD.to(at::kCPU, at::kInt).contiguous();
    std::vector<std::vector<TokenId>> drafts;
    const TokenId* next = on_host.data_ptr<std::int32_t>();
    for (std::int64_t i = 0; i < S; ++i, next += D) {
        drafts.emplace_back(next, next + D);
    }
    return drafts;
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
