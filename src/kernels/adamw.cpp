// SPDX-License-Identifier: Apache-2.0
#include "cuda/adamw_arguments.cuh"
#include "row_launch.hpp"

#include <dflash/core/check.hpp>
#include <dflash/kernels/adamw.hpp>

#include <algorithm>

namespace dflash::kernels {
namespace {

constexpr int kUpdateElements = 4;  // of a thread

// Chunks are multiples of a block's unrolled loop, 256 threads x 4 vectors x 4 elements; 16000 of
// them make the 1.05 G parameters of a drafter for Qwen3-8B.
constexpr std::int64_t kChunk = std::int64_t{1} << 16;

static_assert(sizeof(AdamWFactors) == kAdamWFactorBytes);
static_assert(sizeof(NormChunk) == 2 * sizeof(std::int64_t));

}  // namespace

KernelSpec gradient_norm_kernel() {
    return {.source = "gradient_norm.cu",
            .entry = "gradient_norm",
            .threads = 256,
            .min_blocks_per_sm = 6};
}

KernelSpec adamw_decision_kernel() {
    return {.source = "adamw_decision.cu", .entry = "adamw_decision", .threads = 256};
}

KernelSpec adamw_update_kernel() {
    return {.source = "adamw_update.cu",
            .entry = "adamw_update",
            .threads = 256,
            .min_blocks_per_sm = 6};
}

std::vector<KernelSpec> adamw_kernels() {
    return {gradient_norm_kernel(), adamw_decision_kernel(), adamw_update_kernel()};
}

NormSchedule make_norm_schedule(std::span<const NormPiece> pieces) {
    NormSchedule schedule;
    for (const NormPiece& piece : pieces) {
        schedule.first_chunk.push_back(narrow<std::int32_t>(schedule.chunks.size() / 2));
        for (std::int64_t begin = 0; begin < piece.count; begin += kChunk) {
            schedule.chunks.push_back(piece.begin + begin);
            schedule.chunks.push_back(std::min(kChunk, piece.count - begin));
        }
    }
    schedule.first_chunk.push_back(narrow<std::int32_t>(schedule.chunks.size() / 2));
    return schedule;
}

void adamw_step(const AdamWKernels& kernels,
                const AdamWState& state,
                const AdamWTensors& tensors,
                const AdamWRule& rule,
                std::int64_t num_parameters,
                gpu::StreamView stream) {
    check_entry(kernels.norm, "gradient_norm");
    check_entry(kernels.decision, "adamw_decision");
    check_entry(kernels.update, "adamw_update");
    check_aligned(tensors.gradient_P, "gradient");
    check_aligned(tensors.master_P, "master weights");
    check_aligned(tensors.exp_avg_P, "first moments");
    check_aligned(tensors.exp_avg_sq_P, "second moments");
    check_aligned(state.factors, "memory for the factors of AdamW");
    if (tensors.weight_P != nullptr) {
        check_aligned(tensors.weight_P, "weights");
    }
    DFLASH_CHECK(state.chunks != nullptr && state.first_chunk != nullptr &&
                     state.squares != nullptr && state.norm != nullptr &&
                     state.piece_norms_N != nullptr && state.steps != nullptr,
                 "AdamW lacks memory");
    launch_with(kernels.norm,
                Dim3{narrow<std::uint32_t>(state.num_chunks), 1, 1},
                GradientNormArguments{.gradient_P = tensors.gradient_P,
                                      .chunks = reinterpret_cast<const NormChunk*>(state.chunks),
                                      .squares = state.squares},
                stream);
    AdamWFactors* const factors = static_cast<AdamWFactors*>(state.factors);
    launch_with(kernels.decision,
                Dim3{1, 1, 1},
                AdamWDecisionArguments{.squares = state.squares,
                                       .first_chunk_N1 = state.first_chunk,
                                       .norm = state.norm,
                                       .piece_norms_N = state.piece_norms_N,
                                       .steps = state.steps,
                                       .factors = factors,
                                       .scale = rule.scale,
                                       .learning_rate = rule.learning_rate,
                                       .beta1 = rule.beta1,
                                       .beta2 = rule.beta2,
                                       .clip = rule.clip,
                                       .num_pieces = narrow<int>(state.num_pieces)},
                stream);
    launch_with(
        kernels.update,
        grid_of(num_parameters, std::int64_t{kUpdateElements} * kernels.update.spec().threads),
        AdamWUpdateArguments{
            .gradient_P = tensors.gradient_P,
            .master_P = tensors.master_P,
            .exp_avg_P = tensors.exp_avg_P,
            .exp_avg_sq_P = tensors.exp_avg_sq_P,
            .weight_P = tensors.weight_P,
            .factors = factors,
            .count = num_parameters,
            .beta1 = static_cast<float>(rule.beta1),
            .one_minus_beta1 = static_cast<float>(1 - rule.beta1),
            .beta2 = static_cast<float>(rule.beta2),
            .one_minus_beta2 = static_cast<float>(1 - rule.beta2),
            .eps = static_cast<float>(rule.eps),
            .decay = static_cast<float>(1 - rule.learning_rate * rule.weight_decay)},
        stream);
}

}  // namespace dflash::kernels
