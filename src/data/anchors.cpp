// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/random.hpp>
#include <dflash/data/anchors.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

namespace dflash::data {

double default_gamma(std::int64_t block_size) {
    // Appendix A.1 of the DFlash paper, by rising block size.
    constexpr std::array<std::pair<std::int64_t, double>, 3> kPublished{
        {{8, 4.0}, {10, 5.0}, {16, 7.0}}};
    const auto nearest = std::ranges::min_element(
        kPublished, {}, [&](const auto& entry) { return std::abs(entry.first - block_size); });
    return nearest->second;
}

float slot_weight(const BlockRule& rule, std::int32_t k) {
    DFLASH_CHECK(k >= 0 && k < rule.block_size, "slot {} of a block of {}", k, rule.block_size);
    DFLASH_CHECK(rule.loss_decay_gamma >= 0, "gamma {}", rule.loss_decay_gamma);
    if (k == 0) {
        return 0.0F;
    }
    if (rule.loss_decay_gamma == 0) {
        return 1.0F;
    }
    return static_cast<float>(std::exp(-static_cast<double>(k - 1) / rule.loss_decay_gamma));
}

std::vector<std::int32_t> anchor_candidates(std::span<const std::uint8_t> trainable) {
    std::vector<std::int32_t> candidates;
    for (std::size_t p = 0; p + 1 < trainable.size(); ++p) {
        if (trainable[p] != 0 && trainable[p + 1] != 0) {
            candidates.push_back(narrow<std::int32_t>(p));
        }
    }
    return candidates;
}

std::vector<std::int32_t> draw_anchors(std::span<const std::uint8_t> trainable,
                                       const BlockRule& rule,
                                       std::uint64_t seed,
                                       std::int64_t epoch,
                                       SampleId id,
                                       bool held_out) {
    DFLASH_CHECK(rule.max_anchors >= 1, "max_anchors {}", rule.max_anchors);
    std::vector<std::int32_t> candidates = anchor_candidates(trainable);
    const auto count = static_cast<std::size_t>(rule.max_anchors);
    if (candidates.size() <= count) {
        return candidates;
    }
    RandomStream random(seed,
                        held_out ? Purpose::EvalAnchors : Purpose::Anchors,
                        held_out ? 0 : narrow<std::uint32_t>(epoch),
                        narrow<std::uint64_t>(id));
    std::vector<std::int32_t> anchors;
    anchors.reserve(count);
    for (const std::uint64_t index : random.sample_sorted(candidates.size(), count)) {
        anchors.push_back(candidates[index]);
    }
    return anchors;
}

void append_blocks(PackedRow& row,
                   std::span<const std::uint8_t> trainable,
                   std::span<const std::int32_t> anchors,
                   const BlockRule& rule) {
    DFLASH_CHECK(!row.documents.empty(), "blocks need a document");
    Document& document = row.documents.back();
    BlockPlan& blocks = row.blocks;
    DFLASH_CHECK(document.num_blocks == 0, "the document has its blocks already");
    DFLASH_CHECK(trainable.size() == static_cast<std::size_t>(document.length),
                 "{} mask values for {} tokens",
                 trainable.size(),
                 document.length);
    DFLASH_CHECK(blocks.block_size == 0 || blocks.block_size == rule.block_size,
                 "block size {} in a row of {}",
                 rule.block_size,
                 blocks.block_size);
    blocks.block_size = rule.block_size;

    std::vector<float> weight_of_slot;
    for (std::int32_t k = 0; k < rule.block_size; ++k) {
        weight_of_slot.push_back(slot_weight(rule, k));
    }
    const auto document_index = narrow<std::int32_t>(row.documents.size() - 1);
    std::int32_t previous = -1;
    for (const std::int32_t p : anchors) {
        DFLASH_CHECK(p > previous && p < document.length,
                     "anchor {} after {} in a document of {} tokens",
                     p,
                     previous,
                     document.length);
        previous = p;
        const std::int64_t first_slot = blocks.num_blocks() * rule.block_size;
        blocks.anchors.push_back(document.begin + p);
        blocks.document.push_back(document_index);
        blocks.context_begin.push_back(document.begin);
        ++document.num_blocks;
        // Not cumulative: a slot after a token that is not trained counts again.
        const std::int32_t end = std::min(rule.block_size, document.length - p);
        for (std::int32_t k = 1; k < end; ++k) {
            const auto slot = static_cast<std::size_t>(k);
            const auto target = static_cast<std::size_t>(p) + slot;
            if (trainable[target] == 0 || weight_of_slot[slot] == 0.0F) {
                continue;
            }
            blocks.head_rows.push_back(narrow<std::int32_t>(first_slot + k));
            blocks.labels.push_back(row.tokens[static_cast<std::size_t>(document.begin) + target]);
            blocks.weights.push_back(weight_of_slot[slot]);
            blocks.weight_sum += static_cast<double>(weight_of_slot[slot]);
        }
    }
}

void append_document(PackedRow& row, SampleId id, std::span<const TokenId> tokens) {
    const auto length = narrow<std::int32_t>(tokens.size());
    row.documents.push_back({.id = id,
                             .begin = narrow<std::int32_t>(row.num_tokens()),
                             .length = length,
                             .first_block = narrow<std::int32_t>(row.blocks.num_blocks()),
                             .num_blocks = 0});
    row.tokens.insert(row.tokens.end(), tokens.begin(), tokens.end());
    const std::size_t begin = row.positions.size();
    row.positions.resize(begin + tokens.size());
    std::iota(row.positions.begin() + static_cast<std::ptrdiff_t>(begin), row.positions.end(), 0);
}

}  // namespace dflash::data
