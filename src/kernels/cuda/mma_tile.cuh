// SPDX-License-Identifier: Apache-2.0
// Tiles of bf16 in shared memory, their asynchronous copies, and products of tiles on tensor cores
// with mma.sync (m16n8k16, fp32 sums): what sm_80 to sm_120 have in common.
//
// A tile has rows of D elements. Its 16-byte pieces are swizzled: piece c of row r lies at
// c ^ (r & 7), so that the eight rows of an ldmatrix touch all banks once, read along rows or
// transposed. A tile starts at a multiple of 1024 bytes.
//
// Fragments (PTX ISA, "matrix fragments for mma.m16n8k16"): with g = lane / 4 and t = lane % 4, a
// lane holds of the sums the rows g, g + 8 and the columns 2 t, 2 t + 1 of every 8.
#pragma once

namespace dflash::kernels {

using Word = unsigned;        // two bf16, or a shared memory address
using Half = unsigned short;  // bf16
using Offset = long long;

constexpr int kWarpSize = 32;
constexpr int kPiece = 16;  // bytes of one asynchronous copy and of one row of an 8x8 matrix

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

__device__ constexpr int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}

__device__ __forceinline__ Word shared_address(const void* pointer) {
    return static_cast<Word>(__cvta_generic_to_shared(pointer));
}

/// Starts a copy of 16 bytes past the L1 cache.
__device__ __forceinline__ void copy_piece_async(Word target, const void* source) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

/// The same, or zeros and no access to `source` if not `valid`.
__device__ __forceinline__ void copy_piece_async(Word target, const void* source, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target),
                 "l"(source),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until all but the last `kPending` groups of this thread have arrived.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void load_matrices(Word (&r)[4], Word address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

__device__ __forceinline__ void load_matrices_transposed(Word (&r)[4], Word address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/// c += a b, 16x16 by 16x8.
__device__ __forceinline__ void multiply_add(float (&c)[4], const Word (&a)[4], Word b0, Word b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two values as bf16, rounded to nearest even; `low` at the lower address.
__device__ __forceinline__ Word pack(float low, float high) {
    Word result;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

__device__ __forceinline__ float low_half(Word pair) {
    return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float high_half(Word pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

/// 2^x, to 2 ulp; 0 for -inf.
__device__ __forceinline__ float power_of_two(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

__device__ __forceinline__ void store_words(Word address, Word a, Word b, Word c, Word d) {
    asm volatile(
        "st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
}

__device__ __forceinline__ void store_word(Word address, Word a) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(a) : "memory");
}

__device__ __forceinline__ void load_words(Word (&r)[4], Word address) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/// Tiles with rows of `kDim` elements, and what a lane reads of them.
template <int kDim>
struct Tile {
    static constexpr int kRowBytes = kDim * 2;
    static constexpr int kPieces = kRowBytes / kPiece;  // of a row
    static constexpr int kSteps = kDim / 16;            // of a product over D
    static constexpr int kSwizzle = kPieces < 8 ? kPieces - 1 : 7;

    static __device__ __forceinline__ Word piece_offset(int row, int piece) {
        return static_cast<Word>(row * kRowBytes + ((piece ^ (row & kSwizzle)) << 4));
    }

    /// Offset at which a lane reads a 16x16 matrix at the start of a tile as operand a, or
    /// transposed as operand b (rows are the summed index). Another 16 rows: add row_offset().
    static __device__ __forceinline__ Word lane_offset(int lane) {
        return static_cast<Word>((lane & 15) * kRowBytes +
                                 (((lane >> 4) ^ (lane & kSwizzle)) << 4));
    }

    /// The same for a matrix as operand b that is not transposed (columns are the summed index).
    static __device__ __forceinline__ Word lane_offset_b(int lane) {
        const int row = (lane & 7) + ((lane >> 4) << 3);
        return static_cast<Word>(row * kRowBytes + ((((lane >> 3) & 1) ^ (lane & kSwizzle)) << 4));
    }

    /// A lane's address, 16 `step` columns further. Only two bits of it take part in the swizzle;
    /// the rest is left to the instruction's constant offset.
    static __device__ __forceinline__ Word columns(Word address, int step) {
        return (address ^ static_cast<Word>((step & 3) << 5)) + static_cast<Word>((step >> 2) << 7);
    }

    static __device__ constexpr Word row_offset(int matrix) {
        return static_cast<Word>(matrix * 16 * kRowBytes);
    }
};

/// Where the calling thread starts in the copy of a tile: it copies one piece of every kThreads /
/// kPieces rows.
template <int kDim, int kThreads>
__device__ __forceinline__ int first_row() {
    static_assert(kThreads % Tile<kDim>::kPieces == 0);
    return static_cast<int>(threadIdx.x) / Tile<kDim>::kPieces;
}

template <int kDim>
__device__ __forceinline__ int first_column() {
    return static_cast<int>(threadIdx.x) % Tile<kDim>::kPieces * (kPiece / 2);
}

/// Starts the copy of a matrix into a tile of kRows rows, of which `count` exist; the rest becomes
/// zero. `source` is the calling thread's place in row first_row() and column first_column(),
/// `step` the bytes to its next row. Call with all kThreads threads.
template <int kDim, int kRows, int kThreads>
__device__ __forceinline__ void load_tile(Word tile, const Half* source, Offset step, int count) {
    constexpr int kRowsAtOnce = kThreads / Tile<kDim>::kPieces;
    static_assert(kRows % kRowsAtOnce == 0);
    const int first = first_row<kDim, kThreads>();
    const int piece = first_column<kDim>() / (kPiece / 2);
    const char* at = reinterpret_cast<const char*>(source);
    if (count >= kRows) {
#pragma unroll
        for (int row = 0; row < kRows; row += kRowsAtOnce, at += step) {
            copy_piece_async(tile + Tile<kDim>::piece_offset(first + row, piece), at);
        }
    } else {
#pragma unroll
        for (int row = 0; row < kRows; row += kRowsAtOnce, at += step) {
            copy_piece_async(
                tile + Tile<kDim>::piece_offset(first + row, piece), at, first + row < count);
        }
    }
}

/// The scores of 16 kM rows against 16 kN keys: sums[m][j] += a b^T over D, where `a` is the lane's
/// address of the rows (lane_offset) and `b` that of the keys (lane_offset_b). Constants added to
/// an address go into the offsets here, behind the swizzle: then they cost no register.
template <int kDim, int kM, int kN>
__device__ __forceinline__ void multiply_rows(
    float (&sums)[kM][2 * kN][4], Word a, Word b, Word a_offset = 0, Word b_offset = 0) {
    using T = Tile<kDim>;
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
        Word rows[kM][4];
#pragma unroll
        for (int m = 0; m < kM; ++m) {
            load_matrices(rows[m], T::columns(a, step) + (a_offset + T::row_offset(m)));
        }
#pragma unroll
        for (int n = 0; n < kN; ++n) {
            Word keys[4];
            load_matrices(keys, T::columns(b, step) + (b_offset + T::row_offset(n)));
#pragma unroll
            for (int m = 0; m < kM; ++m) {
                multiply_add(sums[m][2 * n], rows[m], keys[0], keys[1]);
                multiply_add(sums[m][2 * n + 1], rows[m], keys[2], keys[3]);
            }
        }
    }
}

/// The same with the rows' operands in registers, by 16 columns of D.
template <int kDim, int kM, int kN>
__device__ __forceinline__ void multiply_operands(float (&sums)[kM][2 * kN][4],
                                                  const Word (&rows)[kM][kDim / 16][4],
                                                  Word b,
                                                  Word b_offset = 0) {
    using T = Tile<kDim>;
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
#pragma unroll
        for (int n = 0; n < kN; ++n) {
            Word keys[4];
            load_matrices(keys, T::columns(b, step) + (b_offset + T::row_offset(n)));
#pragma unroll
            for (int m = 0; m < kM; ++m) {
                multiply_add(sums[m][2 * n], rows[m][step], keys[0], keys[1]);
                multiply_add(sums[m][2 * n + 1], rows[m][step], keys[2], keys[3]);
            }
        }
    }
}

/// sums[m] += weights[m] x over 16 rows of x, all D columns, where `x` + `offset` is the lane's
/// address of these rows (lane_offset).
template <int kDim, int kM>
__device__ __forceinline__ void accumulate_rows(float (&sums)[kM][kDim / 8][4],
                                                const Word (&weights)[kM][4],
                                                Word x,
                                                Word offset = 0) {
    using T = Tile<kDim>;
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
        Word values[4];
        load_matrices_transposed(values, T::columns(x, step) + offset);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
            multiply_add(sums[m][2 * step], weights[m], values[0], values[1]);
            multiply_add(sums[m][2 * step + 1], weights[m], values[2], values[3]);
        }
    }
}

/// Writes 16 sums' rows as bf16 into rows of a tile; `tile` is the address of the first row, which
/// is a multiple of 8.
template <int kDim>
__device__ __forceinline__ void store_sums(
    Word tile, const float (&sums)[kDim / 8][4], float factor, float factor_8, int lane) {
    using T = Tile<kDim>;
    const int row = lane / 4;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
        const Word at = tile + T::piece_offset(row, j) + static_cast<Word>(lane % 4 * 4);
        store_word(at, pack(sums[j][0] * factor, sums[j][1] * factor));
        store_word(at + 8 * T::kRowBytes, pack(sums[j][2] * factor_8, sums[j][3] * factor_8));
    }
}

/// What pack() leaves out of two values, in bf16.
__device__ __forceinline__ Word pack_rest(float low, float high) {
    const Word rounded = pack(low, high);
    return pack(low - low_half(rounded), high - high_half(rounded));
}

/// As store_sums(), of what rounding left out there.
template <int kDim>
__device__ __forceinline__ void store_rests(
    Word tile, const float (&sums)[kDim / 8][4], float factor, float factor_8, int lane) {
    using T = Tile<kDim>;
    const int row = lane / 4;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
        const Word at = tile + T::piece_offset(row, j) + static_cast<Word>(lane % 4 * 4);
        store_word(at, pack_rest(sums[j][0] * factor, sums[j][1] * factor));
        store_word(at + 8 * T::kRowBytes, pack_rest(sums[j][2] * factor_8, sums[j][3] * factor_8));
    }
}

}  // namespace dflash::kernels
