// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace dflash::data {

/// How many trained tokens of a sample an epoch's blocks predict, on average over all draws of
/// `num_anchors` of the `candidates` (rising positions): a block at p predicts the trained ones of
/// p + 1 ... p + block_size - 1.
double expected_coverage(std::span<const std::uint8_t> trainable,
                         std::span<const std::int32_t> candidates,
                         std::int64_t num_anchors,
                         std::int64_t block_size);

}  // namespace dflash::data
