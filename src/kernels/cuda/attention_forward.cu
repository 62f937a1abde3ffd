// SPDX-License-Identifier: Apache-2.0
// Forward attention of blocks: o = softmax(q k^T / sqrt(D)) v over the keys of the own block, then
// over the context before the anchor, with a running maximum (online softmax). The own block comes
// first, so every row has a finite maximum before the context, which may be empty.
//
// A CTA takes the rows of one query task (several blocks of one document, or a part of a block that
// has more rows than fit) and one key head. A warp owns 16 ROW_TILES rows. Of two tiles of KEYS
// keys and values one is in use and one under way.
//
// Constants: ROW_TILES, KEYS, QUERY_IN_REGISTERS.
// Shared memory: q, the two tiles, (anchor, position) of each row. Arithmetic: 4 D a (row, key)
// pair; with 32 rows a warp reads 160 bytes of shared memory for each m16n8k16.
#include "attention_rows.cuh"

namespace dflash::kernels {
namespace {

constexpr int kWarps = kThreads / kWarpSize;
constexpr int kRowTiles = ROW_TILES;
constexpr int kWarpRows = 16 * kRowTiles;
constexpr int kRows = kWarpRows * kWarps;
constexpr int kParts = ceil_div(kBlockRows, kRows);  // CTAs of one task and head
constexpr int kKeys = KEYS;
constexpr int kKeyTiles = kKeys / 16;
constexpr Word kKeyBytes = kKeys * HeadTile::kRowBytes;
constexpr Word kStageBytes = 2 * kKeyBytes;
constexpr Word kQueryBytes = kRows * HeadTile::kRowBytes;
// With few rows a warp has room for its q in registers; the tiles then take its place.
constexpr bool kQueryInRegisters = QUERY_IN_REGISTERS != 0;
constexpr Word kRingOffset = kQueryInRegisters ? 0 : kQueryBytes;
constexpr Word kPlacesOffset = kQueryInRegisters && kQueryBytes > 2 * kStageBytes
                                   ? kQueryBytes
                                   : kRingOffset + 2 * kStageBytes;
static_assert(kPlacesOffset + kRows * sizeof(int2) == DFLASH_DYNAMIC_SHARED_BYTES);

/// Low enough for every score, and finite: minus itself it is 0.
constexpr float kLowestMaximum = -1e30f;

struct RowState {
    float sums[kRowTiles][kDim / 8][4] = {};
    float maximum[kRowTiles][2];
    float total[kRowTiles][2] = {};  // of this lane's columns
};

/// Scores of 16 kN keys become probabilities, packed as operands; the state follows the new
/// maximum.
template <int kN>
__device__ __forceinline__ void exponentiate(float (&scores)[kRowTiles][2 * kN][4],
                                             Word (&weights)[kN][kRowTiles][4],
                                             RowState& state,
                                             float scale) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
        float factor[2];
        float shift[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float highest = state.maximum[m][half];
#pragma unroll
            for (int j = 0; j < 2 * kN; ++j) {
                highest = fmaxf(highest, fmaxf(scores[m][j][2 * half], scores[m][j][2 * half + 1]));
            }
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
            factor[half] = power_of_two((state.maximum[m][half] - highest) * scale);
            shift[half] = highest * scale;
            state.maximum[m][half] = highest;
        }
        float total[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < 2 * kN; ++j) {
            float p[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                p[e] = power_of_two(fmaf(scores[m][j][e], scale, -shift[e / 2]));
                total[e / 2] += p[e];
            }
            weights[j / 2][m][j % 2 * 2] = pack(p[0], p[1]);
            weights[j / 2][m][j % 2 * 2 + 1] = pack(p[2], p[3]);
        }
        state.total[m][0] = fmaf(state.total[m][0], factor[0], total[0]);
        state.total[m][1] = fmaf(state.total[m][1], factor[1], total[1]);
        // Where no maximum rose, all factors are 1, which changes nothing.
        if (__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
            for (int j = 0; j < kDim / 8; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    state.sums[m][j][e] *= factor[e / 2];
                }
            }
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    attention_forward(const __grid_constant__ ForwardArguments arguments) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Word query_tile = shared_address(shared);
    const Word ring = query_tile + kRingOffset;
    int2* const row_places = reinterpret_cast<int2*>(shared + kPlacesOffset);

    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int part = static_cast<int>(blockIdx.x) % kParts;
    const int head = static_cast<int>(blockIdx.x) / kParts % arguments.num_key_heads;
    const QueryTask task =
        arguments.tasks[static_cast<int>(blockIdx.x) / kParts / arguments.num_key_heads];

    // Rows of the task count from its first block; this CTA has [part_begin, part_begin + count).
    const int part_begin = part * kRows;
    const int count = min(kRows, task.num_blocks * kBlockRows - part_begin);
    const int first_row = task.first_block * kBlockRows + part_begin;
    const int own_count = task.num_blocks * kBlock;
    const int own_tiles = ceil_div(own_count, kKeys);

    load_query_tile<kRows>(query_tile, arguments.q, head, first_row, count);
    for (int row = static_cast<int>(threadIdx.x); row < kRows; row += kThreads) {
        const int in_task = part_begin + min(row, count - 1);
        const int anchor = arguments.anchors_N[task.first_block + in_task / kBlockRows];
        row_places[row] = {anchor, anchor + in_task % kBlockRows / kGroup};
    }

    // What the rows of this warp see, at most and at least. Anchors rise with the row.
    const int warp_begin = warp * kWarpRows;
    const int warp_end = min(warp_begin + kWarpRows, count);
    const bool active = warp_begin < warp_end;
    KeyRange own_seen = {0, 0};
    int lowest_anchor = 0;
    int highest_anchor = 0;
    if (active) {
        own_seen = block_keys_of_rows(part_begin + warp_begin, part_begin + warp_end);
        lowest_anchor = arguments.anchors_N[task.first_block + own_seen.first / kBlock];
        highest_anchor = arguments.anchors_N[task.first_block + own_seen.last / kBlock - 1];
    }
    const Word lane_query = query_tile + static_cast<Word>(warp_begin * HeadTile::kRowBytes) +
                            HeadTile::lane_offset(lane);
    const Word lane_key = ring + HeadTile::lane_offset_b(lane);
    const Word lane_value = ring + HeadTile::lane_offset(lane);
    const float scale = kLog2E * rsqrtf(static_cast<float>(kDim));
    const float hidden = -__int_as_float(0x7f800000);

    RowState state;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
        state.maximum[m][0] = state.maximum[m][1] = kLowestMaximum;
    }

    const auto load_context = [&](Word stage, int begin) {
        if (begin < task.key_end) {
            load_keys<kKeys>(ring + stage,
                             arguments.k_context,
                             arguments.v_context,
                             head,
                             begin,
                             task.key_end - begin);
        }
        commit_copies();
    };

    Word query[kRowTiles][HeadTile::kSteps][4];
    if (kQueryInRegisters) {
        commit_copies();
        wait_copies<0>();
        __syncthreads();
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
            for (int step = 0; step < HeadTile::kSteps; ++step) {
                load_matrices(query[m][step],
                              HeadTile::columns(lane_query, step) + HeadTile::row_offset(m));
            }
        }
        __syncthreads();
    }

    for (int tile = 0; tile < own_tiles; ++tile) {
        if (tile > 0) {
            __syncthreads();
        }
        load_keys<kKeys>(ring,
                         arguments.k_block,
                         arguments.v_block,
                         head,
                         task.first_block * kBlock + tile * kKeys,
                         own_count - tile * kKeys);
        commit_copies();
        if (tile + 1 == own_tiles) {
            load_context(kStageBytes, task.key_begin);
            wait_copies<1>();
        } else {
            wait_copies<0>();
        }
        __syncthreads();
        // Groups of 16 keys of this tile that the warp's rows see.
        const int first = max(own_seen.first - tile * kKeys, 0) / 16;
        const int end = min(ceil_div(max(own_seen.last - tile * kKeys, 0), 16), kKeyTiles);
#pragma unroll 1
        for (int group = first; active && group < end; ++group) {
            const Word keys = static_cast<Word>(group) * HeadTile::row_offset(1);
            float scores[kRowTiles][2][4] = {};
            Word weights[1][kRowTiles][4];
            if (kQueryInRegisters) {
                multiply_operands<kDim, kRowTiles, 1>(scores, query, lane_key + keys);
            } else {
                multiply_rows<kDim, kRowTiles, 1>(scores, lane_query, lane_key + keys);
            }
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int row = part_begin + warp_begin + 16 * m + lane / 4 + 8 * (e / 2);
                        const int key = tile * kKeys + group * 16 + 8 * j + lane % 4 * 2 + e % 2;
                        if (!sees_block_key(key, row, arguments.window)) {
                            scores[m][j][e] = hidden;
                        }
                    }
                }
            }
            exponentiate<1>(scores, weights, state, scale);
            accumulate_rows<kDim, kRowTiles>(state.sums, weights[0], lane_value + keys, kKeyBytes);
        }
    }

    Word stage = kStageBytes;
    for (int key_begin = task.key_begin; key_begin < task.key_end; key_begin += kKeys) {
        wait_copies<0>();
        __syncthreads();
        load_context(stage ^ kStageBytes, key_begin + kKeys);
        const int key_end = key_begin + kKeys;
        if (active && key_begin < highest_anchor &&
            (!kWindowed || lowest_anchor - (key_end - 1) < arguments.window)) {
            float scores[kRowTiles][2 * kKeyTiles][4] = {};
            Word weights[kKeyTiles][kRowTiles][4];
            if (kQueryInRegisters) {
                multiply_operands<kDim, kRowTiles, kKeyTiles>(scores, query, lane_key + stage);
            } else {
                multiply_rows<kDim, kRowTiles, kKeyTiles>(scores, lane_query, lane_key + stage);
            }
            if (key_end > lowest_anchor ||
                (kWindowed && highest_anchor + kBlock - 1 - key_begin >= arguments.window)) {
#pragma unroll
                for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const int2 place = row_places[warp_begin + 16 * m + lane / 4 + 8 * half];
#pragma unroll
                        for (int j = 0; j < 2 * kKeyTiles; ++j) {
#pragma unroll
                            for (int e = 2 * half; e < 2 * half + 2; ++e) {
                                const int key = key_begin + 8 * j + lane % 4 * 2 + e % 2;
                                if (!sees_context(key, place.x, place.y, arguments.window)) {
                                    scores[m][j][e] = hidden;
                                }
                            }
                        }
                    }
                }
            }
            exponentiate<kKeyTiles>(scores, weights, state, scale);
#pragma unroll
            for (int n = 0; n < kKeyTiles; ++n) {
                accumulate_rows<kDim, kRowTiles>(state.sums,
                                                 weights[n],
                                                 lane_value + stage,
                                                 kKeyBytes + HeadTile::row_offset(n));
            }
        }
        stage ^= kStageBytes;
    }

    // o goes through the warp's own rows of the query tile, to be written in whole pieces, and then
    // its rest.
    if (kQueryInRegisters) {
        __syncthreads();
    }
    if (!active) {
        return;
    }
    __syncwarp();
    const Word out_tile = query_tile + static_cast<Word>(warp_begin * HeadTile::kRowBytes);
    float inverse[kRowTiles][2];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float total = state.total[m][half];
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            inverse[m][half] = 1.0f / total;
            const int row = first_row + warp_begin + 16 * m + lane / 4 + 8 * half;
            if (lane % 4 == 0 && row < first_row + count) {
                const Offset query_heads = static_cast<Offset>(arguments.num_key_heads) * kGroup;
                arguments.lse_MQ[row / kGroup * query_heads + head * kGroup + row % kGroup] =
                    kLn2 * fmaf(state.maximum[m][half], scale, __log2f(total));
            }
        }
        store_sums<kDim>(
            out_tile + HeadTile::row_offset(m), state.sums[m], inverse[m][0], inverse[m][1], lane);
    }
    __syncwarp();
    store_query_rows(
        arguments.o, head, first_row + warp_begin, warp_end - warp_begin, out_tile, lane);
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
        store_rests<kDim>(
            out_tile + HeadTile::row_offset(m), state.sums[m], inverse[m][0], inverse[m][1], lane);
    }
    __syncwarp();
    store_query_rows(
        arguments.o_rest, head, first_row + warp_begin, warp_end - warp_begin, out_tile, lane);
}

}  // namespace dflash::kernels
