// SPDX-License-Identifier: Apache-2.0
// How many rows of logits exist at a time.
#pragma once

#include <ATen/ATen.h>
#include <algorithm>
#include <cstdint>

namespace dflash::eval {

/// Calls body(first, count) for pieces of `items` with `rows_of_item` rows of a vocabulary each, so
/// that the fp32 logits of a piece take at most 256 MiB (64 MiB on the CPU), or are one item's.
template <class Body>
void for_logit_chunks(std::int64_t items,
                      std::int64_t rows_of_item,
                      std::int64_t vocab_size,
                      at::Device device,
                      Body&& body) {
    const std::int64_t bytes = std::int64_t{device.is_cuda() ? 256 : 64} << 20;
    const std::int64_t most = std::max<std::int64_t>(
        1, bytes / (4 * vocab_size * std::max<std::int64_t>(1, rows_of_item)));
    for (std::int64_t first = 0; first < items; first += most) {
        body(first, std::min(most, items - first));
    }
}

}  // namespace dflash::eval
