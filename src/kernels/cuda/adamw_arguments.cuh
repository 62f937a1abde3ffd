// SPDX-License-Identifier: Apache-2.0
// What the kernels of AdamW are launched with. Included by the kernels and by the host code that
// fills these structs, so neither language's headers may be used here.
//
// P parameters in flat buffers; N pieces of them, each in chunks.
#pragma once

namespace dflash::kernels {

/// A run of elements of the flat buffers, inside one piece.
struct NormChunk {
    long long begin;
    long long count;
};

struct GradientNormArguments {
    const float* gradient_P;
    const NormChunk* chunks;  // one for each block of the launch
    double* squares;          // sum of squares of each chunk
};

/// What the update is made with, on the device.
struct AdamWFactors {
    float gradient;     // of the gradient sums: normalisation and clipping
    float step_size;    // learning rate over the first bias correction
    float denominator;  // 1 over the root of the second bias correction
    int skip;           // the gradient is not finite
};

struct AdamWDecisionArguments {
    const double* squares;      // of the chunks
    const int* first_chunk_N1;  // of each piece, and last the number of chunks
    double* norm;               // of the normalised gradient
    double* piece_norms_N;      // of the sums
    float* steps;               // taken so far; counted up unless skipped
    AdamWFactors* factors;
    double scale;  // of the sums: normalisation
    double learning_rate;
    double beta1;
    double beta2;
    double clip;  // 0: none
    int num_pieces;
};

struct AdamWUpdateArguments {
    const float* gradient_P;
    float* master_P;
    float* exp_avg_P;
    float* exp_avg_sq_P;
    void* weight_P;  // bf16, rounded from the master weights; null: none
    const AdamWFactors* factors;
    long long count;  // P
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float eps;
    float decay;  // 1 - learning rate x weight decay
};

}  // namespace dflash::kernels
