// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/data/anchors.hpp>
#include <dflash/eval/teacher_forced.hpp>

#include <algorithm>
#include <c10/core/GradMode.h>
#include <numeric>

namespace dflash::eval {
namespace {

/// Blocks of one pass through the drafter.
constexpr std::int32_t kBlocksOfPass = 128;

}  // namespace

TeacherForced::TeacherForced(target::TargetModel& target, model::Drafter& drafter)
    : target_(target), drafter_(drafter), sums_(drafter.config().block_size) {}

const TeacherForcedText& TeacherForced::add(std::span<const TokenId> tokens, std::int64_t begin) {
    const c10::NoGradGuard no_grad;
    const auto S = narrow<std::int32_t>(std::ssize(tokens));
    const auto B = narrow<std::int32_t>(drafter_.config().block_size);
    DFLASH_CHECK(begin > 0 && begin < S, "an answer at {} of {} tokens", begin, S);
    data::PackedRow document;
    data::append_document(document, /*id=*/0, tokens);
    const std::vector<std::int64_t>& taps = drafter_.config().target_layer_ids;
    const at::Tensor features_KTH = at::empty({std::ssize(taps), S, drafter_.config().hidden_size},
                                              target_.embed_VH().options());
    const std::vector<std::int32_t> starts{0, S};
    target_.capture({document.tokens, document.positions, starts},
                    taps,
                    [&](std::int64_t layer, const at::Tensor& residual_TH) {
                        const auto k = std::find(taps.begin(), taps.end(), layer) - taps.begin();
                        features_KTH[k].copy_(residual_TH);
                    });

    const std::vector<std::uint8_t> trainable(tokens.size(), 1);
    const data::BlockRule rule{.block_size = B, .loss_decay_gamma = 0, .max_anchors = S};
    last_ = {begin, {}};
    for (auto first = narrow<std::int32_t>(begin); first < S - 1; first += kBlocksOfPass) {
        data::PackedRow row = document;
        std::vector<std::int32_t> anchors(
            static_cast<std::size_t>(std::min(kBlocksOfPass, S - 1 - first)));
        std::iota(anchors.begin(), anchors.end(), first);
        data::append_blocks(row, trainable, anchors, rule);
        at::Tensor argmax_R;
        drafter_.evaluate(row, features_KTH, &argmax_R);
        const at::Tensor on_host = argmax_R.to(at::kCPU).contiguous();
        const std::int64_t* predicted = on_host.data_ptr<std::int64_t>();
        const std::size_t offset = last_.leading.size();
        last_.leading.resize(offset + anchors.size());
        for (std::size_t r = 0; r < row.blocks.head_rows.size(); ++r) {
            const std::int32_t slot = row.blocks.head_rows[r] % B;
            const bool right = predicted[r] == row.blocks.labels[r];
            ++sums_.counted_[static_cast<std::size_t>(slot)];
            sums_.right_[static_cast<std::size_t>(slot)] += right ? 1 : 0;
            std::int32_t& leading =
                last_.leading[offset + static_cast<std::size_t>(row.blocks.head_rows[r] / B)];
            leading += right && leading == slot - 1 ? 1 : 0;
        }
    }
    ++sums_.texts_;
    sums_.walk(last_.leading);
    return last_;
}

/// Rounds one after another, as decoding would make them.
void TeacherForcedSums::walk(const std::vector<std::int32_t>& leading) {
    anchors_ += std::ssize(leading);
    const auto drafts = std::ssize(right_) - 1;
    for (std::size_t i = 0; i < leading.size();) {
        const std::int32_t kept = leading[i];
        const auto labels =
            std::min<std::ptrdiff_t>(drafts, std::ssize(leading) - static_cast<std::ptrdiff_t>(i));
        if (kept < labels || labels == drafts) {
            ++rounds_;
            accepted_ += kept;
        }
        i += static_cast<std::size_t>(kept) + 1;
    }
}

TeacherForcedSums& TeacherForcedSums::operator+=(const TeacherForcedSums& other) {
    DFLASH_CHECK(right_.size() == other.right_.size(),
                 "sums over blocks of {} and of {}",
                 right_.size(),
                 other.right_.size());
    texts_ += other.texts_;
    anchors_ += other.anchors_;
    rounds_ += other.rounds_;
    accepted_ += other.accepted_;
    for (std::size_t k = 0; k < right_.size(); ++k) {
        right_[k] += other.right_[k];
        counted_[k] += other.counted_[k];
    }
    return *this;
}

std::vector<double> TeacherForcedSums::right_by_slot() const {
    std::vector<double> shares;
    for (std::size_t k = 1; k < right_.size(); ++k) {
        shares.push_back(counted_[k] == 0
                             ? 0
                             : static_cast<double>(right_[k]) / static_cast<double>(counted_[k]));
    }
    return shares;
}

double TeacherForcedSums::walked_tau() const {
    return rounds_ == 0 ? 0 : 1 + static_cast<double>(accepted_) / static_cast<double>(rounds_);
}

void RoundAgreement::add(const TeacherForcedText& judged, const DecodedText& decoded) {
    for (const Round& round : decoded.rounds) {
        const std::int64_t anchor = round.start - judged.begin;
        if (anchor < 0 || anchor >= std::ssize(judged.leading)) {
            continue;
        }
        // Labels end with the text.
        const std::int64_t labels =
            std::min(std::ssize(round.drafted), std::ssize(judged.leading) - anchor);
        ++rounds;
        equal +=
            std::min<std::int64_t>(round.accepted, labels) ==
                    std::min<std::int64_t>(judged.leading[static_cast<std::size_t>(anchor)], labels)
                ? 1
                : 0;
    }
}

}  // namespace dflash::eval
