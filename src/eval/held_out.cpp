// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/eval/held_out.hpp>

#include <numeric>

namespace dflash::eval {

HeldOutScore::HeldOutScore(std::int32_t block_size)
    : correct_(static_cast<std::size_t>(block_size)),
      counted_(static_cast<std::size_t>(block_size)) {}

void HeldOutScore::add(const data::BlockPlan& blocks, std::span<const TokenId> predicted) {
    DFLASH_CHECK(predicted.size() == blocks.head_rows.size(),
                 "{} predictions for {} head rows",
                 predicted.size(),
                 blocks.head_rows.size());
    const auto block_size = static_cast<std::int32_t>(correct_.size());
    blocks_ += blocks.num_blocks();
    // Head rows rise, so the leading slots of a block come first; `expected_slot` is the next one
    // that may extend its run.
    std::int32_t block = -1;
    std::int32_t expected_slot = 1;
    for (std::size_t r = 0; r < predicted.size(); ++r) {
        const std::int32_t slot = blocks.head_rows[r] % block_size;
        const bool right = predicted[r] == blocks.labels[r];
        ++counted_[static_cast<std::size_t>(slot)];
        correct_[static_cast<std::size_t>(slot)] += right ? 1 : 0;
        if (blocks.head_rows[r] / block_size != block) {
            block = blocks.head_rows[r] / block_size;
            expected_slot = 1;
        }
        if (right && slot == expected_slot) {
            ++leading_;
            ++expected_slot;
        }
    }
}

std::vector<double> HeldOutScore::accuracy_by_slot() const {
    std::vector<double> accuracy;
    for (std::size_t k = 1; k < counted_.size(); ++k) {
        accuracy.push_back(counted_[k] == 0 ? 0
                                            : static_cast<double>(correct_[k]) /
                                                  static_cast<double>(counted_[k]));
    }
    return accuracy;
}

double HeldOutScore::accuracy() const {
    const std::int64_t labels = num_labels();
    const std::int64_t right = std::accumulate(correct_.begin(), correct_.end(), std::int64_t{0});
    return labels == 0 ? 0 : static_cast<double>(right) / static_cast<double>(labels);
}

double HeldOutScore::acceptance_length() const {
    return blocks_ == 0 ? 0 : 1 + static_cast<double>(leading_) / static_cast<double>(blocks_);
}

std::int64_t HeldOutScore::num_labels() const {
    return std::accumulate(counted_.begin(), counted_.end(), std::int64_t{0});
}

}  // namespace dflash::eval
