// SPDX-License-Identifier: Apache-2.0
// What the target says to the blocks of a round.
#pragma once

#include <dflash/eval/decode_rounds.hpp>

#include <ATen/ATen.h>
#include <vector>

namespace dflash::eval {

struct BlockVerdict {
    std::int64_t accepted = 0;
    TokenId bonus = -1;
    std::vector<Lead> leads;  ///< greedy: of the accepted + 1 tokens
};

/// `residual_TH`: of the anchors and drafts, sequence by sequence; `starts` [S + 1] the anchors'
/// rows and, last, T. Waits for the device.
std::vector<BlockVerdict> verify_blocks(target::TargetModel& target,
                                        DraftSource& source,
                                        std::span<const SequenceView> sequences,
                                        const std::vector<std::vector<TokenId>>& drafts,
                                        const at::Tensor& residual_TH,
                                        std::span<const std::int32_t> starts,
                                        const ChoiceRule& rule);

}  // namespace dflash::eval
