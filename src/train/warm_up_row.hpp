// SPDX-License-Identifier: Apache-2.0
// A row as large as rows of a run get, for the warm-up before the first step.
#pragma once

#include <dflash/data/packed_row.hpp>
#include <dflash/data/packer.hpp>

namespace dflash::train {

/// Documents that are all trained on, with `num_tokens` tokens and `num_blocks` blocks, or as many
/// as there are places for. No document has more blocks than the rule allows. Tokens are spread
/// over the vocabulary.
data::PackedRow make_warm_up_row(const data::BlockRule& rule,
                                 std::int64_t num_tokens,
                                 std::int64_t num_blocks,
                                 std::int64_t vocab_size = 1);

}  // namespace dflash::train
