// SPDX-License-Identifier: Apache-2.0
// Gradients of the queries and of the blocks' own keys and values. A CTA owns the rows of one query
// task for one key head; nobody else sees the keys of its blocks, so their gradients need only
// these rows. One writer, a fixed order.
//
// First the own blocks: S = q K^T, P = exp(S - lse), dP = dO V^T, dS = P (dP - delta); P and dS go
// through shared memory, and each warp sums dV += P^T dO or dK += dS^T q of 16 keys over all rows.
// Then dQ += dS K over own and context keys, a warp owning 16 ROW_TILES rows. A block with more
// rows than fit is split among several CTAs for dQ; the first of them does all its own keys.
//
// Constants: ROW_TILES, KEYS of a tile, STAGES: (K, V) tiles in shared memory, 1 or 2.
// Shared memory: q, dO, the ring, the terms. P and dS of the own keys lie in the stage that is not
// in use, or where there is one stage in place of V, or where that is too small behind the terms.
#include "attention_rows.cuh"

namespace dflash::kernels {
namespace {

constexpr int kWarps = kThreads / kWarpSize;
constexpr int kRowTiles = ROW_TILES;
constexpr int kWarpRows = 16 * kRowTiles;
constexpr int kRows = kWarpRows * kWarps;
constexpr int kParts = ceil_div(kBlockRows, kRows);
constexpr int kKeys = KEYS;
constexpr int kKeyTiles = kKeys / 16;
constexpr int kStages = STAGES;
constexpr Word kQueryBytes = kRows * HeadTile::kRowBytes;
constexpr Word kKeyBytes = kKeys * HeadTile::kRowBytes;
constexpr Word kStageBytes = 2 * kKeyBytes;
constexpr Word kWeightBytes = kRows * 16 * 2;  // of P, and of dS, for 16 keys
constexpr Word kSpreadBytes = 2 * kWeightBytes;
constexpr Word kTermsBytes = kRows * sizeof(RowTerms);
constexpr bool kSpreadInRing = kKeyTiles * kSpreadBytes <= (kStages > 1 ? kStageBytes : kKeyBytes);
constexpr Word kOwnSharedBytes = 2 * kQueryBytes + kStages * kStageBytes + kTermsBytes;
static_assert(kKeys == 32 && kWarps >= 2 * kKeyTiles && (kStages == 1 || kStages == 2));
static_assert(kParts == 1 || kBlock <= kKeys);
static_assert(kOwnSharedBytes + (kSpreadInRing ? 0 : kKeyTiles * kSpreadBytes) ==
              DFLASH_DYNAMIC_SHARED_BYTES);

/// Place of P or dS of (row, 8 of 16 keys), swizzled for reads across rows.
__device__ __forceinline__ Word weight_offset(int row, int piece) {
    return static_cast<Word>(row * 32 + ((piece ^ ((row >> 2) & 1)) << 4));
}

/// P and dS of the warp's rows against 16 kN keys.
template <int kN>
struct Weights {
    float p[kRowTiles][2 * kN][4];
    Word ds[kRowTiles][2 * kN][2];  // [..][half of the rows]
};

/// dO lies kQueryBytes behind q, V kKeyBytes behind K. `visible(row, key)` is asked, with both
/// counted from the start of the warp's rows and of the keys, only if `masked`.
template <int kN, typename Visible>
__device__ __forceinline__ void make_weights(Weights<kN>& weights,
                                             Word lane_q,
                                             Word lane_k,
                                             const RowTerms* terms,
                                             int lane,
                                             bool masked,
                                             Visible visible) {
    const float scale = kLog2E * rsqrtf(static_cast<float>(kDim));
    float(&p)[kRowTiles][2 * kN][4] = weights.p;
    float dp[kRowTiles][2 * kN][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int j = 0; j < 2 * kN; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                p[m][j][e] = 0.0f;
            }
        }
    }
    multiply_rows<kDim, kRowTiles, kN>(p, lane_q, lane_k);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float shift = terms[16 * m + lane / 4 + 8 * half].negative_lse2;
#pragma unroll
            for (int j = 0; j < 2 * kN; ++j) {
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; ++e) {
                    p[m][j][e] = power_of_two(fmaf(p[m][j][e], scale, shift));
                }
            }
        }
    }
    if (masked) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
            for (int j = 0; j < 2 * kN; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if (!visible(16 * m + lane / 4 + 8 * (e / 2), 8 * j + lane % 4 * 2 + e % 2)) {
                        p[m][j][e] = 0.0f;
                    }
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float start = terms[16 * m + lane / 4 + 8 * half].negative_delta;
#pragma unroll
            for (int j = 0; j < 2 * kN; ++j) {
                dp[m][j][2 * half] = dp[m][j][2 * half + 1] = start;
            }
        }
    }
    multiply_rows<kDim, kRowTiles, kN>(dp, lane_q, lane_k, kQueryBytes, kKeyBytes);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int j = 0; j < 2 * kN; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                weights.ds[m][j][half] = pack(p[m][j][2 * half] * dp[m][j][2 * half],
                                              p[m][j][2 * half + 1] * dp[m][j][2 * half + 1]);
            }
        }
    }
}

/// sums += dS K.
template <int kN>
__device__ __forceinline__ void add_query_gradient(float (&sums)[kRowTiles][kDim / 8][4],
                                                   const Weights<kN>& weights,
                                                   Word lane_keys) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
        Word ds[kRowTiles][4];
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                ds[m][i] = weights.ds[m][2 * n + i / 2][i % 2];
            }
        }
        accumulate_rows<kDim, kRowTiles>(sums, ds, lane_keys, HeadTile::row_offset(n));
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    attention_backward_query(const __grid_constant__ QueryGradientArguments arguments) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Word q_tile = shared_address(shared);
    const Word do_tile = q_tile + kQueryBytes;
    const Word ring = do_tile + kQueryBytes;
    const RowTerms* const terms =
        reinterpret_cast<const RowTerms*>(shared + 2 * kQueryBytes + kStages * kStageBytes);

    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int part = static_cast<int>(blockIdx.x) % kParts;
    const int head = static_cast<int>(blockIdx.x) / kParts % arguments.num_key_heads;
    const QueryTask task =
        arguments.tasks[static_cast<int>(blockIdx.x) / kParts / arguments.num_key_heads];

    const int task_rows = task.num_blocks * kBlockRows;
    const int first_row = task.first_block * kBlockRows;
    const int own_begin = task.first_block * kBlock;
    const int own_count = task.num_blocks * kBlock;
    const int own_tiles = ceil_div(own_count, kKeys);

    const auto load_rows = [&](int which) {
        const int begin = which * kRows;
        const int count = min(kRows, task_rows - begin);
        load_query_tile<kRows>(q_tile, arguments.q, head, first_row + begin, count);
        load_query_tile<kRows>(do_tile, arguments.d_o, head, first_row + begin, count);
        const RowTerms* const source =
            arguments.terms_KR + head * arguments.num_tokens * kGroup + first_row + begin;
        for (int row = static_cast<int>(threadIdx.x); row < kRows; row += kThreads) {
            const bool valid = row < count;
            copy_piece_async(
                shared_address(terms) + row * kPiece, source + (valid ? row : 0), valid);
        }
    };
    const auto load_own_keys = [&](int tile) {
        load_keys<kKeys>(ring,
                         arguments.k_block,
                         arguments.v_block,
                         head,
                         own_begin + tile * kKeys,
                         own_count - tile * kKeys);
        commit_copies();
    };

    const int warp_begin = warp * kWarpRows;
    const RowTerms* const warp_terms = terms + warp_begin;
    const Word lane_q =
        q_tile + static_cast<Word>(warp_begin * HeadTile::kRowBytes) + HeadTile::lane_offset(lane);
    const Word lane_b = ring + HeadTile::lane_offset_b(lane);
    const Word lane_keys = ring + HeadTile::lane_offset(lane);
    const float factor = rsqrtf(static_cast<float>(kDim));

    // Rows of one part that this warp has, and the own keys they see.
    const auto rows_of_warp = [&](int which) {
        return min(kWarpRows, task_rows - which * kRows - warp_begin);
    };
    const auto own_keys_of_warp = [&](int which) {
        const int begin = which * kRows + warp_begin;
        return block_keys_of_rows(begin, begin + rows_of_warp(which));
    };
    const auto group_begin = [](const KeyRange& seen, int tile) {
        return max(seen.first - tile * kKeys, 0) / 16;
    };
    const auto group_end = [](const KeyRange& seen, int tile) {
        return min(ceil_div(max(seen.last - tile * kKeys, 0), 16), kKeyTiles);
    };

    if (part == 0) {
        // A warp for dV and one for dK of 16 keys; of eight warps the others only make P and dS.
        const bool sums_key = warp % 2 != 0;
        const int key_group = warp / 2;
        const bool sums_any = key_group < kKeyTiles;
        for (int tile = 0; tile < own_tiles; ++tile) {
            float sums[1][kDim / 8][4] = {};
            // The part whose dQ follows comes last, so that its rows are in place.
            for (int which = kParts - 1; which >= 0; --which) {
                if (kParts > 1 || tile == 0) {
                    load_rows(which);
                }
                // P and dS of 16 keys; with one stage in place of their V.
                const auto spread = [&](int group) {
                    if (!kSpreadInRing) {
                        return q_tile + kOwnSharedBytes + static_cast<Word>(group) * kSpreadBytes;
                    }
                    if (kStages == 1) {
                        return ring + kKeyBytes +
                               static_cast<Word>(group) * HeadTile::row_offset(1);
                    }
                    return ring + kStageBytes + static_cast<Word>(group) * kSpreadBytes;
                };
                load_own_keys(tile);
                wait_copies<0>();
                __syncthreads();

                const KeyRange seen = own_keys_of_warp(which);
                const bool present = rows_of_warp(which) > 0;
#pragma unroll 1
                for (int group = 0; group < kKeyTiles; ++group) {
                    Weights<1> weights = {};
                    const Word keys = static_cast<Word>(group) * HeadTile::row_offset(1);
                    if (present && group >= group_begin(seen, tile) &&
                        group < group_end(seen, tile)) {
                        make_weights<1>(weights,
                                        lane_q,
                                        lane_b + keys,
                                        warp_terms,
                                        lane,
                                        true,
                                        [&](int row, int key) {
                                            return row < rows_of_warp(which) &&
                                                   sees_block_key(tile * kKeys + group * 16 + key,
                                                                  which * kRows + warp_begin + row,
                                                                  arguments.window);
                                        });
                    }
                    if (kStages == 1) {
                        __syncthreads();
                    }
#pragma unroll
                    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
                        for (int j = 0; j < 2; ++j) {
#pragma unroll
                            for (int half = 0; half < 2; ++half) {
                                const int row = warp_begin + 16 * m + lane / 4 + 8 * half;
                                const Word at = spread(group) + weight_offset(row, j) +
                                                static_cast<Word>(lane % 4 * 4);
                                store_word(
                                    at,
                                    pack(weights.p[m][j][2 * half], weights.p[m][j][2 * half + 1]));
                                store_word(at + kWeightBytes, weights.ds[m][j][half]);
                            }
                        }
                    }
                }
                __syncthreads();

                // Only rows of the blocks that these 16 keys belong to see them.
                const int key = tile * kKeys + key_group * 16;
                const int row_begin = kParts > 1 ? 0 : key / kBlock * kBlockRows;
                const int row_end =
                    kParts > 1 ? kRows
                               : min((key + 15) / kBlock * kBlockRows + kBlockRows, task_rows);
                const Word weight_tile = spread(key_group) + (sums_key ? kWeightBytes : 0);
                const Word lane_rows = (sums_key ? q_tile : do_tile) + HeadTile::lane_offset(lane);
                for (int group = row_begin / 16; sums_any && group * 16 < row_end; ++group) {
                    Word transposed[1][4];
                    load_matrices_transposed(
                        transposed[0],
                        weight_tile + weight_offset(group * 16 + (lane & 7) + ((lane >> 4) << 3),
                                                    (lane >> 3) & 1));
                    accumulate_rows<kDim, 1>(
                        sums, transposed, lane_rows + HeadTile::row_offset(group));
                }
                __syncthreads();
            }
            if (sums_any) {
                const HeadRows out = sums_key ? arguments.dk_block : arguments.dv_block;
                const int key = tile * kKeys + key_group * 16;
                const Word out_tile = ring + HeadTile::row_offset(1) * static_cast<Word>(warp);
                const float out_factor = sums_key ? factor : 1.0f;
                store_sums<kDim>(out_tile, sums[0], out_factor, out_factor, lane);
                __syncwarp();
                store_head_rows(head_of(out, head) + (own_begin + key) * out.token_stride,
                                out.token_stride,
                                min(16, own_count - key),
                                out_tile,
                                lane);
            }
            __syncthreads();
        }
    } else {
        load_rows(part);
    }

    const bool active = rows_of_warp(part) > 0;
    const KeyRange own_seen = active ? own_keys_of_warp(part) : KeyRange{0, 0};
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

    float sums[kRowTiles][kDim / 8][4] = {};
    for (int tile = 0; tile < own_tiles; ++tile) {
        if (tile > 0) {
            __syncthreads();
        }
        load_own_keys(tile);
        if (kStages > 1 && tile + 1 == own_tiles) {
            load_context(kStageBytes, task.key_begin);
            wait_copies<1>();
        } else {
            wait_copies<0>();
        }
        __syncthreads();
        const int end = active ? group_end(own_seen, tile) : 0;
#pragma unroll 1
        for (int group = group_begin(own_seen, tile); group < end; ++group) {
            const Word keys = static_cast<Word>(group) * HeadTile::row_offset(1);
            Weights<1> weights;
            make_weights<1>(
                weights, lane_q, lane_b + keys, warp_terms, lane, true, [&](int row, int key) {
                    return sees_block_key(tile * kKeys + group * 16 + key,
                                          part * kRows + warp_begin + row,
                                          arguments.window);
                });
            add_query_gradient(sums, weights, lane_keys + keys);
        }
    }
    // Anchors rise with the row.
    const int warp_rows = max(rows_of_warp(part), 1);
    Word stage = kStages > 1 ? kStageBytes : 0;
    for (int key_begin = task.key_begin; key_begin < task.key_end; key_begin += kKeys) {
        if (kStages > 1) {
            wait_copies<0>();
            __syncthreads();
            load_context(stage ^ kStageBytes, key_begin + kKeys);
        } else {
            __syncthreads();
            load_context(0, key_begin);
            wait_copies<0>();
            __syncthreads();
        }
        const int key_end = key_begin + kKeys;
        // Rows without a token have anchor 0 and see nothing.
        const int lowest_anchor = warp_terms[0].anchor;
        const int highest_anchor = warp_terms[warp_rows - 1].anchor;
        if (key_begin < highest_anchor &&
            (!kWindowed || lowest_anchor - (key_end - 1) < arguments.window)) {
            const bool masked =
                key_end > lowest_anchor ||
                (kWindowed && highest_anchor + kBlock - 1 - key_begin >= arguments.window);
            Weights<kKeyTiles> weights;
            make_weights<kKeyTiles>(
                weights, lane_q, lane_b + stage, warp_terms, lane, masked, [&](int row, int key) {
                    return sees_context(key_begin + key,
                                        warp_terms[row].anchor,
                                        warp_terms[row].position,
                                        arguments.window);
                });
            add_query_gradient(sums, weights, lane_keys + stage);
        }
        stage ^= kStages > 1 ? kStageBytes : 0;
    }

    // dQ goes through the warp's own rows of the q tile, to be written in whole pieces.
    if (!active) {
        return;
    }
    __syncwarp();
    const Word out_tile = q_tile + static_cast<Word>(warp_begin * HeadTile::kRowBytes);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
        store_sums<kDim>(out_tile + HeadTile::row_offset(m), sums[m], factor, factor, lane);
    }
    __syncwarp();
    store_query_rows(arguments.dq,
                     head,
                     first_row + part * kRows + warp_begin,
                     rows_of_warp(part),
                     out_tile,
                     lane);
}

}  // namespace dflash::kernels
