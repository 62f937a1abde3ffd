// SPDX-License-Identifier: Apache-2.0
#include "query_tiles.hpp"

#include <dflash/core/check.hpp>

#include <algorithm>

namespace dflash::model {
namespace {

/// First context key that slot k of block n sees.
std::int64_t lowest_key(const data::BlockPlan& blocks,
                        std::int64_t n,
                        std::int64_t k,
                        std::int64_t window) {
    const std::size_t i = narrow<std::size_t>(n);
    const std::int64_t begin = blocks.context_begin[i];
    return window > 0 ? std::max(begin, blocks.anchors[i] + k - window + 1) : begin;
}

std::vector<KeyTile> key_tiles(const data::BlockPlan& blocks,
                               const QueryTile& tile,
                               std::int64_t window,
                               std::int64_t max_keys) {
    std::vector<KeyTile> result;
    const std::int64_t last = tile.first_block + tile.num_blocks - 1;
    const std::int64_t end = blocks.anchors[narrow<std::size_t>(last)];
    for (std::int64_t begin = lowest_key(blocks, tile.first_block, 0, window); begin < end;
         begin += max_keys) {
        KeyTile keys;
        keys.begin = begin;
        keys.count = std::min(max_keys, end - begin);
        keys.seen_begin = keys.full_begin = tile.num_blocks;
        for (std::int64_t i = 0; i < tile.num_blocks; ++i) {
            const std::int64_t n = tile.first_block + i;
            const std::int64_t anchor = blocks.anchors[narrow<std::size_t>(n)];
            if (anchor <= begin || lowest_key(blocks, n, 0, window) >= begin + keys.count) {
                continue;
            }
            keys.seen_begin = std::min(keys.seen_begin, i);
            keys.seen_end = i + 1;
            if (anchor >= begin + keys.count &&
                lowest_key(blocks, n, blocks.block_size - 1, window) <= begin) {
                keys.full_begin = std::min(keys.full_begin, i);
                keys.full_end = i + 1;
            }
        }
        if (keys.full_end == 0) {
            keys.full_begin = keys.full_end = keys.seen_end;
        }
        // Between far anchors of a narrow window there are keys that nobody sees.
        if (keys.seen_begin < keys.seen_end) {
            result.push_back(keys);
        }
    }
    return result;
}

}  // namespace

TileShape tile_shape(std::int64_t tile_elements, std::int64_t num_heads, std::int64_t block_size) {
    const std::int64_t rows = num_heads * block_size;
    TileShape shape;
    shape.keys = std::clamp(tile_elements / rows, TiledAttention::kMinKeys, kMaxKeys);
    shape.blocks =
        std::max<std::int64_t>(1, tile_elements / (rows * std::max(shape.keys, block_size)));
    return shape;
}

std::vector<QueryTile> query_tiles(const data::BlockPlan& blocks,
                                   std::int64_t window,
                                   const TileShape& shape) {
    std::vector<QueryTile> result;
    for (std::int64_t n = 0; n < blocks.num_blocks(); ++n) {
        const std::size_t i = narrow<std::size_t>(n);
        const bool same_document = n > 0 && blocks.context_begin[i] == blocks.context_begin[i - 1];
        if (!same_document || result.back().num_blocks == shape.blocks) {
            result.push_back({n, 0, {}});
        }
        ++result.back().num_blocks;
    }
    for (QueryTile& tile : result) {
        tile.keys = key_tiles(blocks, tile, window, shape.keys);
    }
    return result;
}

}  // namespace dflash::model
