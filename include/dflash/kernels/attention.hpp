// SPDX-License-Identifier: Apache-2.0
// Attention of block rows to their own block and to the context before their anchor, forward and
// backward, as CUDA kernels: exact, without a mask tensor, without atomics. Every output element
// has one writer and a fixed order of sums, so results are the same bit for bit every time.
//
// T context rows, N blocks of B slots, M = N B query tokens, Q query heads, K key heads,
// G = Q / K, D head size. Tensors are bf16 [tokens, heads, D]; sums, softmax and its statistics are
// fp32, P and dS are rounded to bf16 as operands of products. Contents of context rows that no
// block sees (padding after the last anchor of a document) never reach any output.
//
// All launches are asynchronous on the stream given last, a stream of the kernels' device; inputs
// and the schedule's device copy must stay as they are until the work is done. Nothing is
// allocated. Shapes and alignment are checked: Error{Internal}.
#pragma once

#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/architecture.hpp>
#include <dflash/kernels/attention_schedule.hpp>
#include <dflash/kernels/kernel_spec.hpp>
#include <dflash/kernels/launch.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace dflash::kernels {

/// A bf16 device tensor [tokens, heads, D], or a view of one: D contiguous, `data` 16-byte aligned,
/// strides in elements and multiples of 8.
struct HeadTensor {
    void* data = nullptr;
    std::int64_t token_stride = 0;
    std::int64_t head_stride = 0;

    /// A whole tensor.
    static HeadTensor contiguous(void* data, std::int64_t num_heads, std::int64_t head_dim) {
        return {data, num_heads * head_dim, head_dim};
    }
};

struct AttentionInputTensors {
    HeadTensor q;          // M tokens, Q heads
    HeadTensor k_context;  // T tokens, K heads
    HeadTensor v_context;
    HeadTensor k_block;  // M tokens, K heads
    HeadTensor v_block;
};

/// What the forward writes and the backward reads.
struct AttentionResultTensors {
    HeadTensor o;       // M tokens, Q heads
    HeadTensor o_rest;  // o before rounding, minus o: bf16. Delta, the sum over D of o dO, is the
                        // same for all keys of a row, so its error does not average out; from o
                        // alone it was the largest error of dQ and dK.
    float* lse_MQ = nullptr;  // natural log-sum-exp of the scaled scores, contiguous
};

/// In the shapes of the inputs; overwritten. Rows of the context that nobody sees get zeros.
struct AttentionGradientTensors {
    HeadTensor dq;
    HeadTensor dk_context;
    HeadTensor dv_context;
    HeadTensor dk_block;
    HeadTensor dv_block;
};

/// The kernels of one shape on one device, or those of them that are used.
struct AttentionKernels {
    LoadedKernel forward;
    LoadedKernel row_terms;
    LoadedKernel context_gradient;
    LoadedKernel query_gradient;
};

/// One row for one kind of layer.
struct AttentionProblem {
    AttentionShape shape;
    std::int64_t num_key_heads = 0;  // K
    std::int64_t window = 0;         // of the schedule; 0 without
    const AttentionSchedule* schedule = nullptr;
    const std::int32_t* device_schedule = nullptr;  ///< schedule->packed() on the device
};

/// The kernels of a shape, in the order of AttentionKernels' members.
std::vector<KernelSpec> attention_kernels(const AttentionShape& shape,
                                          const Architecture& architecture);

/// Floating-point operations of one (row, key) pair that is seen, in each of the kernels.
inline constexpr int kForwardFlopsPerDim = 4;          // S, P V
inline constexpr int kContextGradientFlopsPerDim = 8;  // S, dP, dV, dK
inline constexpr int kQueryGradientFlopsPerDim = 6;    // S, dP, dQ

/// Bytes of `row_terms` for M tokens of Q query heads: 16 a row.
std::int64_t attention_row_terms_bytes(std::int64_t num_tokens, std::int64_t num_query_heads);

/// o = softmax(q k^T / sqrt(D) + mask) v, its rest and the log-sum-exp.
void attention_forward(const AttentionKernels& kernels,
                       const AttentionProblem& problem,
                       const AttentionInputTensors& in,
                       const AttentionResultTensors& out,
                       gpu::StreamView stream);

/// First part of the backward: fills `row_terms` (device memory, 16-byte aligned) from the
/// forward's results and dO.
void attention_row_terms(const AttentionKernels& kernels,
                         const AttentionProblem& problem,
                         const AttentionResultTensors& result,
                         const HeadTensor& d_o,
                         void* row_terms,
                         gpu::StreamView stream);

/// Second part: dk_context and dv_context, all T rows.
void attention_context_gradient(const AttentionKernels& kernels,
                                const AttentionProblem& problem,
                                const AttentionInputTensors& in,
                                const HeadTensor& d_o,
                                const void* row_terms,
                                const AttentionGradientTensors& out,
                                gpu::StreamView stream);

/// Third part: dq, dk_block and dv_block. Independent of the second.
void attention_query_gradient(const AttentionKernels& kernels,
                              const AttentionProblem& problem,
                              const AttentionInputTensors& in,
                              const HeadTensor& d_o,
                              const void* row_terms,
                              const AttentionGradientTensors& out,
                              gpu::StreamView stream);

/// The three parts in order.
void attention_backward(const AttentionKernels& kernels,
                        const AttentionProblem& problem,
                        const AttentionInputTensors& in,
                        const AttentionResultTensors& result,
                        const HeadTensor& d_o,
                        void* row_terms,
                        const AttentionGradientTensors& out,
                        gpu::StreamView stream);

}  // namespace dflash::kernels
