// SPDX-License-Identifier: Apache-2.0
// Attention of blocks to the context before them and to themselves, where both lie one after
// another in a cache: forward only, the mask of dflash/model/attention.hpp.
//
// S sequences with a block of b slots each, M = S b query rows, Q query heads, K key heads, d head
// size, R rows of the cache.
#pragma once

#include <dflash/model/attention.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <vector>

namespace dflash::model {

/// A block in the cache: its context begins at row `begin`, its own b rows follow.
struct CachedBlock {
    std::int64_t begin = 0;
    std::int64_t context = 0;  ///< tokens, all of the sequence
};

/// Not to be kept: holds tensors that belong to the graph in which it was made, if there is one.
class CachedAttention {
  public:
    /// Blocks as CachedBlock has them, int32 [S] on the device, of `block_size` rows each, for
    /// queries of `dtype`; none of `begin_S` is behind the last of R rows. `most_keys`: at least
    /// the context and the block of the longest. In half types on CUDA nothing here waits for the
    /// device or depends on the host.
    CachedAttention(const at::Tensor& begin_S,
                    const at::Tensor& context_S,
                    std::int64_t block_size,
                    std::int64_t most_keys,
                    at::ScalarType dtype);

    /// out = softmax(q k^T / sqrt(d) + mask) v, exact. On the CPU, and in fp32 on CUDA, layers that
    /// need one have a mask of b times the keys in reach, for one sequence at a time.
    void forward(const at::Tensor& out_MQd,
                 const at::Tensor& q_MQd,
                 const at::Tensor& keys_RKd,
                 const at::Tensor& values_RKd,
                 const AttentionMask& mask) const;

  private:
    at::Device device_;
    std::int64_t block_size_;
    std::int64_t most_keys_;
    // For the flash kernel, int32: first query row of every block and, last, M; first key row, with
    // an entry behind the last that nothing reads; keys of every block.
    at::Tensor query_starts_;
    at::Tensor key_starts_;
    at::Tensor num_keys_;
    std::vector<CachedBlock> blocks_;  // for the other kernels
};

}  // namespace dflash::model
