// SPDX-License-Identifier: Apache-2.0
// What the attention kernels are launched with. Included by the kernels and by the host code that
// fills these structs, so neither language's headers may be used here.
//
// T context rows, N blocks of B slots, M = N B query tokens, K key heads, G query heads to each of
// them. A row of a kernel is a (token, query head of one key head): r = token * G + head % G.
#pragma once

namespace dflash::kernels {

/// A bf16 tensor [tokens, heads, D]: D contiguous, strides in elements, multiples of 8; data
/// 16-byte aligned. A thread that copies a tile copies one piece of 16 bytes of every
/// threads / (D / 8) rows of the tile; `copy_step` are the bytes between two of them, precomputed
/// because a sum with an argument needs no register for it. Rows of q and dO are (token, head) with
/// the head inside: where the group does not divide the rows copied at once there is no such step.
struct HeadRows {
    void* data;
    long long token_stride;
    long long head_stride;
    long long copy_step;
};

/// Consecutive blocks of one document and the context keys that some of them see.
struct QueryTask {
    int first_block;
    int num_blocks;
    int key_begin;
    int key_end;
};

/// Consecutive context keys of one document and the blocks that see some of them. Keys from
/// `seen_count` on are seen by nobody: their gradient is zero and their values are never used.
struct KeyTask {
    int key_begin;
    int key_count;
    int seen_count;
    int block_begin;
    int block_end;
};

/// What the backward needs of a row besides q and dO: 16 bytes, copied in one piece.
struct RowTerms {
    float negative_lse2;   // -(log-sum-exp of the scaled scores) / ln 2
    float negative_delta;  // -(sum over D of o dO), o with its rest
    int anchor;            // context keys below it are visible
    int position;          // of the token in the packed row
};

struct ForwardArguments {
    HeadRows q;  // M tokens, Q heads
    HeadRows k_context;
    HeadRows v_context;
    HeadRows k_block;
    HeadRows v_block;
    HeadRows o;
    HeadRows o_rest;  // what rounding left out of o
    float* lse_MQ;    // natural logarithm
    const int* anchors_N;
    const QueryTask* tasks;
    int num_key_heads;
    int window;  // 0 without
};

struct RowTermsArguments {
    HeadRows o;
    HeadRows o_rest;
    HeadRows d_o;
    const float* lse_MQ;
    const int* anchors_N;
    RowTerms* terms_KR;    // R = M G rows of each key head
    long long num_tokens;  // M
    int num_key_heads;
};

struct ContextGradientArguments {
    HeadRows q;
    HeadRows d_o;
    HeadRows k_context;
    HeadRows v_context;
    HeadRows dk_context;
    HeadRows dv_context;
    const RowTerms* terms_KR;
    const KeyTask* tasks;
    long long num_tokens;
    int num_key_heads;
    int window;
};

struct QueryGradientArguments {
    HeadRows q;
    HeadRows d_o;
    HeadRows k_context;
    HeadRows v_context;
    HeadRows k_block;
    HeadRows v_block;
    HeadRows dq;
    HeadRows dk_block;
    HeadRows dv_block;
    const RowTerms* terms_KR;
    const QueryTask* tasks;
    long long num_tokens;
    int num_key_heads;
    int window;
};

}  // namespace dflash::kernels
