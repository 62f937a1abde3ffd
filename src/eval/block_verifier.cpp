// SPDX-License-Identifier: Apache-2.0
// C sequences of a chunk, D drafts of each at most, B = D + 1, R rows, V vocabulary.
#include "block_verifier.hpp"

#include "logit_chunks.hpp"
#include "token_uniform.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/random.hpp>
#include <dflash/eval/rejection.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace dflash::eval {
namespace {

template <class T>
at::Tensor upload(const std::vector<T>& values, at::Device device) {
    return tensor::upload(std::span<const T>(values), device);
}

/// Drafts of the first `count` sequences that are on the device only, to be sent with a verdict.
at::Tensor unsent(const RoundDrafts& drafts, std::int64_t count, const at::Tensor& like) {
    return drafts.drafted_SD.defined()
               ? drafts.drafted_SD.narrow(0, 0, count).to(like.scalar_type()).flatten()
               : at::empty({0}, like.options());
}

/// The two largest logits of every row, on the host.
class Best {
  public:
    /// Brings drafts along.
    Best(target::TargetModel& target,
         const at::Tensor& residual_RH,
         RoundDrafts& drafts,
         std::int64_t sequences)
        : rows_(residual_RH.size(0)) {
        const at::TensorOptions options = residual_RH.options();
        const at::Tensor tokens_2R = at::empty({2, rows_}, options.dtype(at::kInt));
        const at::Tensor logits_2R = at::empty({2, rows_}, options.dtype(at::kFloat));
        for_logit_chunks(
            rows_, 1, target.config().vocab_size, options.device(), [&](auto first, auto count) {
                at::Tensor logits_CV = target.logits(residual_RH.narrow(0, first, count));
                for (std::int64_t i = 0; i < 2; ++i) {
                    const auto [value_C, token_C] = logits_CV.max(1);
                    tokens_2R[i].narrow(0, first, count).copy_(token_C);
                    logits_2R[i].narrow(0, first, count).copy_(value_C);
                    if (i == 0) {
                        logits_CV.scatter_(
                            1,
                            token_C.unsqueeze(1),
                            static_cast<double>(-std::numeric_limits<float>::infinity()));
                    }
                }
            });
        values_ = at::cat({tokens_2R.flatten(),
                           logits_2R.view(at::kInt).flatten(),
                           unsent(drafts, sequences, tokens_2R)})
                      .to(at::kCPU);
        if (drafts.drafted_SD.defined()) {
            drafts.on_host = split_drafts(
                values_.narrow(0, 4 * rows_, values_.size(0) - 4 * rows_).view({sequences, -1}));
        }
    }

    TokenId token(std::int64_t row) const { return value(0, row); }

    Lead lead(std::int64_t row) const {
        return {std::bit_cast<float>(value(2, row)),
                value(1, row),
                std::bit_cast<float>(value(3, row))};
    }

  private:
    std::int32_t value(std::int64_t i, std::int64_t row) const {
        return values_.const_data_ptr<std::int32_t>()[i * rows_ + row];
    }

    std::int64_t rows_;
    at::Tensor values_;  // int32: tokens, then logits' bits, the largest of all rows first
};

std::vector<BlockVerdict> verify_greedily(target::TargetModel& target,
                                          RoundDrafts& drafts,
                                          const at::Tensor& residual_TH,
                                          std::span<const std::int32_t> starts) {
    const Best best(target, residual_TH, drafts, std::ssize(starts) - 1);
    std::vector<BlockVerdict> verdicts;
    for (std::size_t i = 0; i < drafts.on_host.size(); ++i) {
        const std::vector<TokenId>& drafted = drafts.on_host[i];
        BlockVerdict verdict;
        std::int64_t row = starts[i];
        verdict.leads.push_back(best.lead(row));
        while (verdict.accepted < std::ssize(drafted) &&
               drafted[static_cast<std::size_t>(verdict.accepted)] == best.token(row)) {
            ++verdict.accepted;
            ++row;
            verdict.leads.push_back(best.lead(row));
        }
        verdict.bonus = best.token(row);
        verdicts.push_back(std::move(verdict));
    }
    return verdicts;
}

/// Host values of the test of a chunk, padded to D drafts.
struct PaddedDrafts {
    std::vector<std::int64_t> rows;        // [C B] of the residual
    std::vector<std::int64_t> drafted;     // [C D]; none if they are on the device
    std::vector<std::int64_t> counts;      // [C]
    std::vector<float> test_uniforms;      // [C D]
    std::vector<float> draw_uniforms_all;  // [C B], by the number of drafts that are accepted

    /// `drafts`: null if they are on the device, D of them.
    void add(const SequenceView& sequence,
             const std::vector<TokenId>* drafts,
             std::int64_t start,
             std::int64_t D,
             std::uint64_t seed) {
        const std::int64_t count = drafts == nullptr ? D : std::ssize(*drafts);
        counts.push_back(count);
        const auto position = std::ssize(sequence.tokens);
        for (std::int64_t k = 0; k <= D; ++k) {
            rows.push_back(start + std::min(k, count));
            // The number that plain decoding would use for this token.
            draw_uniforms_all.push_back(target::sampling_uniform(
                seed, static_cast<std::uint64_t>(sequence.id), position + k));
        }
        for (std::int64_t k = 0; k < D; ++k) {
            if (drafts != nullptr) {
                drafted.push_back(k < count ? (*drafts)[static_cast<std::size_t>(k)] : 0);
            }
            test_uniforms.push_back(
                token_uniform(seed, sequence.id, position + k, TokenUniform::Test));
        }
    }
};

}  // namespace

std::vector<std::vector<TokenId>> split_drafts(const at::Tensor& drafted_SD) {
    const at::Tensor rows_SD = drafted_SD.contiguous();
    const TokenId* next = rows_SD.const_data_ptr<TokenId>();
    std::vector<std::vector<TokenId>> drafts;
    for (std::int64_t i = 0; i < rows_SD.size(0); ++i, next += rows_SD.size(1)) {
        drafts.emplace_back(next, next + rows_SD.size(1));
    }
    return drafts;
}

std::vector<BlockVerdict> verify_blocks(target::TargetModel& target,
                                        DraftSource& source,
                                        std::span<const SequenceView> sequences,
                                        RoundDrafts& drafts,
                                        const at::Tensor& residual_TH,
                                        std::span<const std::int32_t> starts,
                                        const ChoiceRule& rule) {
    if (rule.sampling.greedy()) {
        return verify_greedily(target, drafts, residual_TH, starts);
    }
    const at::Device device = residual_TH.device();
    const bool on_device = drafts.drafted_SD.defined();
    const std::int64_t D = source.block_size() - 1;
    const auto S = std::ssize(sequences);
    const at::TensorOptions integers = residual_TH.options().dtype(at::kLong);
    const at::Tensor accepted_S = at::empty({S}, integers);
    const at::Tensor next_S = at::empty({S}, integers);
    const std::int64_t V = target.config().vocab_size;
    for_logit_chunks(S, D + 1, V, device, [&](std::int64_t first, std::int64_t count) {
        PaddedDrafts padded;
        for (std::int64_t i = first; i < first + count; ++i) {
            const auto at = static_cast<std::size_t>(i);
            padded.add(
                sequences[at], on_device ? nullptr : &drafts.on_host[at], starts[at], D, rule.seed);
        }
        const at::Tensor logits_RV =
            target.logits(residual_TH.index_select(0, upload(padded.rows, device)));
        const std::vector<target::Sampling> rules(static_cast<std::size_t>(count * (D + 1)),
                                                  rule.sampling);
        const at::Tensor uniforms_CB =
            upload(padded.draw_uniforms_all, device).view({count, D + 1});
        const DraftVerdict verdict = test_drafts(
            {.target_SBV = target::probabilities(logits_RV, rules).view({count, D + 1, V}),
             .draft_SDV = source.distributions(first, count),
             .drafted_SD = on_device ? drafts.drafted_SD.narrow(0, first, count)
                                     : upload(padded.drafted, device).view({count, D}),
             .num_drafted_S = upload(padded.counts, device),
             .test_uniforms_SD = upload(padded.test_uniforms, device).view({count, D}),
             .draw_uniforms_SB = uniforms_CB});
        accepted_S.narrow(0, first, count).copy_(verdict.accepted_S);
        next_S.narrow(0, first, count).copy_(verdict.next_S);
    });
    const at::Tensor all =
        at::cat({accepted_S, next_S, unsent(drafts, S, accepted_S)}).to(at::kCPU, at::kInt);
    const auto* values = all.const_data_ptr<std::int32_t>();
    std::vector<BlockVerdict> verdicts;
    for (std::int64_t i = 0; i < S; ++i) {
        verdicts.push_back({values[i], values[S + i], {}});
    }
    if (on_device) {
        drafts.on_host = split_drafts(all.narrow(0, 2 * S, S * D).view({S, D}));
    }
    return verdicts;
}

}  // namespace dflash::eval
