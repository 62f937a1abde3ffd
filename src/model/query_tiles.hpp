// SPDX-License-Identifier: Apache-2.0
// How the attention of a packed row is cut into tiles: consecutive blocks of one document against
// runs of its context keys. Anchors rise, so the blocks that see a key tile are consecutive.
#pragma once

#include <dflash/model/tiled_attention.hpp>

#include <cstdint>
#include <vector>

namespace dflash::model {

/// Keys of a tile at most; tiles of short contexts are as wide as the context.
inline constexpr std::int64_t kMaxKeys = 256;

struct TileShape {
    std::int64_t blocks = 0;
    std::int64_t keys = 0;
};

/// The largest tile of at most `tile_elements` scores over all heads, but at least one block
/// against kMinKeys keys.
TileShape tile_shape(std::int64_t tile_elements, std::int64_t num_heads, std::int64_t block_size);

/// Keys [begin, begin + count) and the blocks (counted from the query tile's first) that see some
/// of them, [seen_begin, seen_end), and all of them, [full_begin, full_end).
struct KeyTile {
    std::int64_t begin = 0;
    std::int64_t count = 0;
    std::int64_t seen_begin = 0;
    std::int64_t seen_end = 0;
    std::int64_t full_begin = 0;
    std::int64_t full_end = 0;
};

struct QueryTile {
    std::int64_t first_block = 0;
    std::int64_t num_blocks = 0;
    std::vector<KeyTile> keys;
};

/// The tiles of a row for a layer with that window (0: none), in the order of its blocks.
std::vector<QueryTile> query_tiles(const data::BlockPlan& blocks,
                                   std::int64_t window,
                                   const TileShape& shape);

}  // namespace dflash::model
