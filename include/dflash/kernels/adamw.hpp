// SPDX-License-Identifier: Apache-2.0
// AdamW as CUDA kernels over flat buffers: the norm of the gradient in a fixed order, the decision
// whether the step is taken, and the update, without the host.
//
// P parameters; the buffers are fp32 and begin at multiples of 16 bytes. Results are the same bit
// for bit every time. All launches are asynchronous on the stream given last, a stream of the
// kernels' device; nothing is allocated. Alignment is checked: Error{Internal}.
#pragma once

#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/kernel_spec.hpp>
#include <dflash/kernels/launch.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace dflash::kernels {

KernelSpec gradient_norm_kernel();
KernelSpec adamw_decision_kernel();
KernelSpec adamw_update_kernel();

/// All of them.
std::vector<KernelSpec> adamw_kernels();

/// A run of parameters whose gradient has a norm of its own: a weight, or a part of one.
struct NormPiece {
    std::int64_t begin = 0;
    std::int64_t count = 0;
};

/// How the norm is shared out. The order of its sums, and so its bits, depend on the pieces alone.
struct NormSchedule {
    std::vector<std::int64_t> chunks;       ///< [C, 2]: first parameter and count
    std::vector<std::int32_t> first_chunk;  ///< [N + 1]: of each piece, and last C
};

NormSchedule make_norm_schedule(std::span<const NormPiece> pieces);

/// A NormSchedule on the device, and memory that a step needs.
struct AdamWState {
    const std::int64_t* chunks = nullptr;
    const std::int32_t* first_chunk = nullptr;
    std::int64_t num_chunks = 0;
    std::int64_t num_pieces = 0;      // N
    double* squares = nullptr;        ///< [C] scratch
    void* factors = nullptr;          ///< kAdamWFactorBytes, scratch between the kernels
    double* norm = nullptr;           ///< result: norm of scale x sums
    double* piece_norms_N = nullptr;  ///< result: norms of the sums of the pieces
    float* steps = nullptr;           ///< steps that were taken
};

inline constexpr std::int64_t kAdamWFactorBytes = 16;

struct AdamWTensors {
    const float* gradient_P = nullptr;  ///< sums
    float* master_P = nullptr;
    float* exp_avg_P = nullptr;
    float* exp_avg_sq_P = nullptr;
    void* weight_P = nullptr;  ///< bf16, 8-byte aligned; null: none
};

struct AdamWRule {
    double beta1 = 0;
    double beta2 = 0;
    double eps = 0;
    double weight_decay = 0;
    double clip = 0;  ///< 0: no clipping
    double scale = 0;
    double learning_rate = 0;
};

struct AdamWKernels {
    LoadedKernel norm;
    LoadedKernel decision;
    LoadedKernel update;
};

/// One step with g = scale x sums min(1, clip / (|scale x sums| + 1e-6)). If the norm is not
/// finite, and only then, nothing but it and the norms of the pieces is written.
void adamw_step(const AdamWKernels& kernels,
                const AdamWState& state,
                const AdamWTensors& tensors,
                const AdamWRule& rule,
                std::int64_t num_parameters,
                gpu::StreamView stream);

}  // namespace dflash::kernels
