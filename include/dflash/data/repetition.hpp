// SPDX-License-Identifier: Apache-2.0
// How much a text repeats itself.
#pragma once

#include <dflash/core/types.hpp>

#include <cstdint>
#include <span>

namespace dflash::data {

/// Share of the n-grams of tokens that stand earlier in the same text; 0 for less than n + 1
/// tokens.
double repeated_share(std::span<const TokenId> tokens, std::int64_t n = 4);

}  // namespace dflash::data
