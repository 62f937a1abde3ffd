// SPDX-License-Identifier: Apache-2.0
// Causal attention of a packed row: a token sees the tokens of its own document up to itself.
//
// T tokens, N query heads, G key/value heads, D head size.
#pragma once

#include <ATen/ATen.h>
#include <cstdint>
#include <span>
#include <vector>

namespace dflash::target {

/// Where the documents of a row lie, on the host and, for CUDA, on the device; made once a row.
class PackedLayout {
  public:
    /// `starts`: first token of each document and, last, the number of tokens.
    PackedLayout(std::span<const std::int32_t> starts, at::Device device);

    std::span<const std::int32_t> starts() const { return starts_; }

    const at::Tensor& device_starts() const { return device_starts_; }

    std::int64_t longest() const { return longest_; }

  private:
    std::vector<std::int32_t> starts_;
    at::Tensor device_starts_;  // int32 [documents + 1], CUDA only
    std::int64_t longest_ = 0;
};

/// out = softmax(q k^T / sqrt(D)) v within each document, exact, in fp32 inside. Query head h reads
/// key head h / (N / G). q, k, v may be views whose heads and columns lie one after another.
///
/// Memory beyond the arguments: one document's output and tiles of at most 256 x 512 scores per
/// thread on the CPU; on CUDA the output (half types), or one document's k and v repeated for
/// all query heads (fp32).
void packed_causal_attention(const at::Tensor& out_TND,
                             const at::Tensor& q_TND,
                             const at::Tensor& k_TGD,
                             const at::Tensor& v_TGD,
                             const PackedLayout& layout);

}  // namespace dflash::target
