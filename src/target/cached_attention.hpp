// SPDX-License-Identifier: Apache-2.0
// Causal attention of new tokens over what a cache holds and themselves.
//
// T new tokens of S sequences, N query heads, G key/value heads, D head size, R rows of the cache.
#pragma once

#include <ATen/ATen.h>
#include <cstdint>
#include <vector>

namespace dflash::target {

/// Where the sequences of a call lie among the new tokens and in the cache. On the host; for CUDA
/// on the device as well, and where only the device knows it, there alone.
struct CachedLayout {
    std::vector<std::int32_t> query_starts;  ///< [S + 1]
    std::vector<std::int32_t> key_starts;    ///< [S] first row of each sequence in the cache
    std::vector<std::int32_t> key_counts;    ///< [S] rows of each, the new tokens included
    std::int64_t most_queries = 0;           ///< of one sequence
    std::int64_t most_keys = 0;              ///< of one sequence, or more than that

    at::Tensor device_query_starts;  ///< int32 [S + 1]
    at::Tensor device_key_starts;    ///< int32 [S + 1], the last one of no meaning
    at::Tensor device_key_counts;    ///< int32 [S]

    /// From the host's lists to the device, if it is a GPU.
    void upload(at::Device device);

    /// From the device to the host's lists: waits for the device.
    void download();
};

/// Whether attention reads the layout on the device only, so that a graph can hold it.
bool attends_without_host(const at::Tensor& q_TND);

/// softmax(q k^T / sqrt(D)) v as a new tensor [T, N D], exact, fp32 inside. The last token of a
/// sequence sees all its keys, the one before it all but the last, and so on. Query head h reads
/// key head h / (N / G). Keys are read where they lie, in half types on CUDA in one launch.
///
/// Memory beyond the result: on the CPU a mask of at most 128 queries x the keys of a sequence; on
/// CUDA in fp32 one sequence's keys and values repeated for all query heads.
at::Tensor cached_causal_attention(const at::Tensor& q_TND,
                                   const at::Tensor& keys_RGD,
                                   const at::Tensor& values_RGD,
                                   const CachedLayout& layout);

}  // namespace dflash::target
