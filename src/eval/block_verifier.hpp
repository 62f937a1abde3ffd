// SPDX-License-Identifier: Apache-2.0
// What the target says to the blocks of a round.
//
// S sequences, D drafts of each, T rows.
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

/// The drafts of a round, on the host or first on the device only.
struct RoundDrafts {
    std::vector<std::vector<TokenId>> on_host;  ///< each sequence has its own number of them
    at::Tensor drafted_SD;  ///< int64, of S sequences at least; undefined if they are on the host
};

/// Rows of drafts on the host, int32 [S, D].
std::vector<std::vector<TokenId>> split_drafts(const at::Tensor& drafted_SD);

/// `residual_TH`: of the anchors and drafts, sequence by sequence, and perhaps more behind them;
/// `starts` [S + 1] the anchors' rows and, last, the end of the last sequence. Waits for the device
/// once, and brings drafts to the host with the verdict.
std::vector<BlockVerdict> verify_blocks(target::TargetModel& target,
                                        DraftSource& source,
                                        std::span<const SequenceView> sequences,
                                        RoundDrafts& drafts,
                                        const at::Tensor& residual_TH,
                                        std::span<const std::int32_t> starts,
                                        const ChoiceRule& rule);

}  // namespace dflash::eval
