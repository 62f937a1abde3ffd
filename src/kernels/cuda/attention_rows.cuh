// SPDX-License-Identifier: Apache-2.0
// How rows of (token, head) relate to blocks, and who sees what: the same for all attention
// kernels. Constants of the instance:
//   HEAD_DIM  D
//   GROUP     G, query heads of a key head
//   BLOCK     B, slots of a block
//   CAUSAL    whether a slot sees only the slots up to itself
//   WINDOWED  whether there is a sliding window; its length is an argument
#pragma once

#include "attention_arguments.cuh"
#include "mma_tile.cuh"

namespace dflash::kernels {

constexpr int kDim = HEAD_DIM;
constexpr int kGroup = GROUP;
constexpr int kBlock = BLOCK;
constexpr bool kCausal = CAUSAL != 0;
constexpr bool kWindowed = WINDOWED != 0;
constexpr int kThreads = DFLASH_THREADS;
constexpr int kBlockRows = kBlock * kGroup;

using HeadTile = Tile<kDim>;

__device__ __forceinline__ Half* head_of(const HeadRows& x, int head) {
    return static_cast<Half*>(x.data) + head * x.head_stride;
}

/// The values of row `row` of key head `key_head`.
__device__ __forceinline__ Half* row_of(const HeadRows& x, int key_head, int row) {
    return static_cast<Half*>(x.data) + (row / kGroup) * x.token_stride +
           (key_head * kGroup + row % kGroup) * x.head_stride;
}

/// Whether a row sees a context key of its document.
__device__ __forceinline__ bool sees_context(int key, int anchor, int position, int window) {
    return key < anchor && (!kWindowed || position - key < window);
}

/// Whether a row sees a key of the blocks; both are counted from the first block of the task.
__device__ __forceinline__ bool sees_block_key(int key, int row, int window) {
    const int slot = row % kBlockRows / kGroup;
    const int key_slot = key % kBlock;
    const int distance = slot > key_slot ? slot - key_slot : key_slot - slot;
    return key / kBlock == row / kBlockRows && (!kCausal || key_slot <= slot) &&
           (!kWindowed || distance < window);
}

/// Starts the copy of keys and values [begin, begin + count) of one head into two tiles of kKeys, K
/// and behind it V; the rest becomes zero.
template <int kKeys>
__device__ __forceinline__ void load_keys(
    Word tile, const HeadRows& k, const HeadRows& v, int head, int begin, int count) {
    const Offset row = begin + first_row<kDim, kThreads>();
    const int column = first_column<kDim>();
    load_tile<kDim, kKeys, kThreads>(
        tile, head_of(k, head) + row * k.token_stride + column, k.copy_step, count);
    load_tile<kDim, kKeys, kThreads>(tile + kKeys * HeadTile::kRowBytes,
                                     head_of(v, head) + row * v.token_stride + column,
                                     v.copy_step,
                                     count);
}

/// Starts the copy of rows [first, first + count) of a key head into a tile of kRows; the rest
/// becomes zero.
template <int kRows>
__device__ __forceinline__ void load_query_tile(
    Word tile, const HeadRows& x, int key_head, int first, int count) {
    constexpr int kRowsAtOnce = kThreads / HeadTile::kPieces;
    static_assert(kThreads % HeadTile::kPieces == 0 && kRows % kRowsAtOnce == 0);
    const int piece = static_cast<int>(threadIdx.x) % HeadTile::kPieces;
    const int start = static_cast<int>(threadIdx.x) / HeadTile::kPieces;
    const auto place = [&](int row) {
        return reinterpret_cast<const char*>(row_of(x, key_head, first + start + row)) +
               piece * kPiece;
    };
    const char* at = place(0);
    const auto next = [&](int row) {
        // Where the group divides the rows copied at once, a thread stays with its head.
        at = kRowsAtOnce % kGroup == 0 ? at + x.copy_step : place(row);
    };
    // Unrolled no further than keeps the addresses in registers.
    if (count >= kRows) {
#pragma unroll 4
        for (int row = 0; row < kRows; row += kRowsAtOnce, next(row)) {
            copy_piece_async(tile + HeadTile::piece_offset(start + row, piece), at);
        }
    } else {
#pragma unroll 4
        for (int row = 0; row < kRows; row += kRowsAtOnce, next(row)) {
            copy_piece_async(
                tile + HeadTile::piece_offset(start + row, piece), at, start + row < count);
        }
    }
}

/// Writes rows [first, first + count) of a key head from a tile, by one warp, in whole pieces.
__device__ __forceinline__ void store_query_rows(
    const HeadRows& x, int key_head, int first, int count, Word tile, int lane) {
    const int piece = lane % HeadTile::kPieces;
    for (int row = lane / HeadTile::kPieces; row < count; row += kWarpSize / HeadTile::kPieces) {
        Word words[4];
        load_words(words, tile + HeadTile::piece_offset(row, piece));
        *reinterpret_cast<uint4*>(row_of(x, key_head, first + row) + piece * (kPiece / 2)) =
            make_uint4(words[0], words[1], words[2], words[3]);
    }
}

/// Writes rows [0, count) of one head, `target` being the first, from a tile, by one warp.
__device__ __forceinline__ void store_head_rows(
    Half* target, Offset stride, int count, Word tile, int lane) {
    const int piece = lane % HeadTile::kPieces;
    for (int row = lane / HeadTile::kPieces; row < count; row += kWarpSize / HeadTile::kPieces) {
        Word words[4];
        load_words(words, tile + HeadTile::piece_offset(row, piece));
        *reinterpret_cast<uint4*>(target + row * stride + piece * (kPiece / 2)) =
            make_uint4(words[0], words[1], words[2], words[3]);
    }
}

/// The keys of a query task's blocks that some of its rows [begin, end) see: [first, last).
struct KeyRange {
    int first;
    int last;
};

__device__ __forceinline__ KeyRange block_keys_of_rows(int begin, int end) {
    return {begin / kBlockRows * kBlock, ((end - 1) / kBlockRows + 1) * kBlock};
}

}  // namespace dflash::kernels
