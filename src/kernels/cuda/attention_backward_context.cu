// SPDX-License-Identifier: Apache-2.0
// Gradients of the context's keys and values. A CTA owns the keys of one key task for one key head
// and goes through the rows of all blocks that see some of them, all query heads of the group as
// rows, so that the sum over heads happens inside the products. One writer, a fixed order.
//
// Scores are transposed (keys x rows), so probabilities leave the sums' registers as operands. Two
// warps share 16 KEY_TILES keys, with K or V as operands in registers and one sum each:
//   maker    S = K q^T, P = exp(S - lse), dV += P dO; leaves P in a mailbox
//   taker    dP = V dO^T, dS = P (dP - delta), dK += dS q; one tile of rows behind the maker
// A 16-row step of a warp then costs two reads of the rows' tiles for two products: 128 bytes of
// shared memory for each m16n8k16 with KEY_TILES 2, half of what one warp with both sums needs.
//
// Constants: KEY_TILES, PAIRS of warps, ROWS of a tile, STAGES of the ring of row tiles (q, dO,
// terms): the maker's, the taker's, and at least one under way; UNROLL, 16-row steps at once.
// Shared memory: the ring, two mailboxes, the terms.
#include "attention_rows.cuh"

namespace dflash::kernels {
namespace {

constexpr int kPairs = PAIRS;
constexpr int kKeyTiles = KEY_TILES;
constexpr int kPairKeys = 16 * kKeyTiles;
constexpr int kKeys = kPairKeys * kPairs;
constexpr int kRows = ROWS;
constexpr int kSteps = kRows / 16;
constexpr int kStages = STAGES;
constexpr int kUnroll = UNROLL;
constexpr int kAhead = kStages - 2;  // row tiles under way
constexpr Word kTileBytes = kRows * HeadTile::kRowBytes;
constexpr Word kStageBytes = 2 * kTileBytes;
constexpr Word kRingBytes = kStages * kStageBytes;
constexpr Word kMatrixBytes = kWarpSize * 16;  // of P, 16x8 in fp32
constexpr Word kMailBytes = kKeyTiles * kSteps * 2 * kMatrixBytes;
constexpr Word kTermsBytes = kRows * sizeof(RowTerms);
static_assert(kThreads == 2 * kPairs * kWarpSize);
static_assert(kAhead >= 1 && kThreads >= kRows);
static_assert(2 * kKeys * HeadTile::kRowBytes <= kRingBytes);
static_assert(kRingBytes + 2 * kPairs * kMailBytes + kStages * kTermsBytes ==
              DFLASH_DYNAMIC_SHARED_BYTES);

struct Shared {
    Word ring;
    Word mailboxes;
    const RowTerms* terms;
};

/// What a warp holds over all row tiles.
struct WarpState {
    Word operands[kKeyTiles][HeadTile::kSteps][4];  // the maker's of K, the taker's of V
    float sums[kKeyTiles][kDim / 8][4] = {};
};

/// One tile of rows, as maker or as taker. The maker multiplies K with q and sums over dO, the
/// taker V with dO and sums over q.
template <bool kTaker>
__device__ __forceinline__ void process_tile(WarpState& state,
                                             const ContextGradientArguments& arguments,
                                             const KeyTask& task,
                                             const Shared& shared,
                                             int tile,
                                             int num_rows,
                                             int pair,
                                             int lane) {
    constexpr Word kFirst = kTaker ? kTileBytes : 0;
    constexpr Word kSecond = kTaker ? 0 : kTileBytes;
    const float scale = kLog2E * rsqrtf(static_cast<float>(kDim));
    const Word stage = shared.ring + static_cast<Word>(tile % kStages) * kStageBytes;
    const Word first = stage + HeadTile::lane_offset_b(lane);
    const Word second = stage + HeadTile::lane_offset(lane);
    const Word tile_mail = shared.mailboxes +
                           static_cast<Word>(tile % 2 * kPairs + pair) * kMailBytes +
                           static_cast<Word>(lane * 16);
    const RowTerms* const rows = shared.terms + tile % kStages * kRows;
    bool masked = false;
    if (!kTaker) {
        const int last = min(num_rows - tile * kRows, kRows) - 1;
        masked = rows[0].anchor < task.key_begin + task.key_count ||
                 (kWindowed && rows[last].anchor + kBlock - 1 - task.key_begin >= arguments.window);
    }
#pragma unroll kUnroll
    for (int step = 0; step < kSteps; ++step) {
        float scores[kKeyTiles][2][4];
        const RowTerms* const terms = rows + 16 * step + lane % 4 * 2;
        const Word mail = tile_mail + static_cast<Word>(step) * (kKeyTiles * 2 * kMatrixBytes);
        const Word step_offset = static_cast<Word>(step) * HeadTile::row_offset(1);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const float start = kTaker ? terms[8 * j + e].negative_delta : 0.0f;
#pragma unroll
                for (int m = 0; m < kKeyTiles; ++m) {
                    scores[m][j][e] = scores[m][j][e + 2] = start;
                }
            }
        }
        multiply_operands<kDim, kKeyTiles, 1>(scores, state.operands, first, kFirst + step_offset);
        if (!kTaker) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float shift = terms[8 * j + e % 2].negative_lse2;
#pragma unroll
                    for (int m = 0; m < kKeyTiles; ++m) {
                        scores[m][j][e] = power_of_two(fmaf(scores[m][j][e], scale, shift));
                    }
                }
            }
            if (masked) {
                const int key = task.key_begin + pair * kPairKeys + lane / 4;
#pragma unroll
                for (int j = 0; j < 2; ++j) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const RowTerms& row = terms[8 * j + e % 2];
#pragma unroll
                        for (int m = 0; m < kKeyTiles; ++m) {
                            if (!sees_context(key + 16 * m + 8 * (e / 2),
                                              row.anchor,
                                              row.position,
                                              arguments.window)) {
                                scores[m][j][e] = 0.0f;
                            }
                        }
                    }
                }
            }
        }
        Word weights[kKeyTiles][4];
#pragma unroll
        for (int m = 0; m < kKeyTiles; ++m) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                float(&x)[4] = scores[m][j];
                const Word at = mail + static_cast<Word>(m * 2 + j) * kMatrixBytes;
                if (kTaker) {
                    Word p[4];
                    load_words(p, at);
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        x[e] *= __uint_as_float(p[e]);
                    }
                } else {
                    store_words(at,
                                __float_as_uint(x[0]),
                                __float_as_uint(x[1]),
                                __float_as_uint(x[2]),
                                __float_as_uint(x[3]));
                }
                weights[m][2 * j] = pack(x[0], x[1]);
                weights[m][2 * j + 1] = pack(x[2], x[3]);
            }
        }
        accumulate_rows<kDim, kKeyTiles>(state.sums, weights, second, kSecond + step_offset);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    attention_backward_context(const __grid_constant__ ContextGradientArguments arguments) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared shared;
    shared.ring = shared_address(memory);
    shared.mailboxes = shared.ring + kRingBytes;
    shared.terms = reinterpret_cast<const RowTerms*>(memory + kRingBytes + 2 * kPairs * kMailBytes);

    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int pair = warp % kPairs;
    const bool taker = warp >= kPairs;
    const int head = static_cast<int>(blockIdx.x) % arguments.num_key_heads;
    const KeyTask task = arguments.tasks[static_cast<int>(blockIdx.x) / arguments.num_key_heads];
    const int row_begin = task.block_begin * kBlockRows;
    const int num_rows = task.block_end * kBlockRows - row_begin;
    const int tiles = ceil_div(num_rows, kRows);
    const RowTerms* const head_terms =
        arguments.terms_KR + head * arguments.num_tokens * kGroup + row_begin;

    const auto issue = [&](int tile) {
        if (tile < tiles) {
            const int first = tile * kRows;
            const int count = num_rows - first;
            const Word stage = shared.ring + static_cast<Word>(tile % kStages) * kStageBytes;
            load_query_tile<kRows>(stage, arguments.q, head, row_begin + first, count);
            load_query_tile<kRows>(
                stage + kTileBytes, arguments.d_o, head, row_begin + first, count);
            const int row = static_cast<int>(threadIdx.x);
            if (row < kRows) {
                copy_piece_async(shared_address(shared.terms + tile % kStages * kRows + row),
                                 head_terms + first + row,
                                 row < count);
            }
        }
        commit_copies();
    };

    // K or V of the pair's keys into registers, by way of the ring.
    load_keys<kKeys>(shared.ring,
                     arguments.k_context,
                     arguments.v_context,
                     head,
                     task.key_begin,
                     task.seen_count);
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    WarpState state;
    const Word mine = shared.ring + (taker ? kKeys * HeadTile::kRowBytes : 0) +
                      HeadTile::row_offset(1) * static_cast<Word>(pair * kKeyTiles);
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m) {
#pragma unroll
        for (int step = 0; step < HeadTile::kSteps; ++step) {
            load_matrices(state.operands[m][step],
                          HeadTile::columns(mine + HeadTile::lane_offset(lane), step) +
                              HeadTile::row_offset(m));
        }
    }
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < kAhead; ++tile) {
        issue(tile);
    }

    for (int round = 0; round <= tiles; ++round) {
        wait_copies<kAhead - 1>();
        __syncthreads();
        issue(round + kAhead);
        if (taker) {
            if (round > 0) {
                process_tile<true>(state, arguments, task, shared, round - 1, num_rows, pair, lane);
            }
        } else if (round < tiles) {
            process_tile<false>(state, arguments, task, shared, round, num_rows, pair, lane);
        }
    }

    // The warp's sums go through its own part of the ring, to be written in whole pieces.
    wait_copies<0>();
    __syncthreads();
    const float factor = taker ? rsqrtf(static_cast<float>(kDim)) : 1.0f;
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m) {
        store_sums<kDim>(mine + HeadTile::row_offset(m), state.sums[m], factor, factor, lane);
    }
    __syncwarp();
    const HeadRows out = taker ? arguments.dk_context : arguments.dv_context;
    const int key = pair * kPairKeys;
    store_head_rows(head_of(out, head) + (task.key_begin + key) * out.token_stride,
                    out.token_stride,
                    min(task.key_count - key, kPairKeys),
                    mine,
                    lane);
}

}  // namespace dflash::kernels
