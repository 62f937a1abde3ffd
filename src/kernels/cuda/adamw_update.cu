// SPDX-License-Identifier: Apache-2.0
// AdamW with decoupled decay (Loshchilov and Hutter, arXiv 1711.05101) over flat fp32 buffers; bf16
// weights are rounded from the master weights in the same pass. With f the factors of the step:
//   g = gradient f.gradient,  m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,
//   w = decay w - f.step_size m / (sqrt(v) f.denominator + eps)
// Nothing is written in a step that is skipped.
//
// A thread has one vector of 4 elements. Bytes per element: 28, 30 with bf16 weights; about 20
// operations, a root and a division among them.
#include "adamw_arguments.cuh"
#include "row_vectors.cuh"

namespace dflash::kernels {
namespace {

constexpr int kElements = 4;

/// One parameter: moments and master weight before and after.
struct Parameter {
    float master;
    float exp_avg;
    float exp_avg_sq;
};

__device__ __forceinline__ void update(Parameter& p,
                                       float gradient_sum,
                                       const AdamWFactors& factors,
                                       const AdamWUpdateArguments& arguments) {
    const float gradient = gradient_sum * factors.gradient;
    p.exp_avg = fmaf(arguments.beta1, p.exp_avg, arguments.one_minus_beta1 * gradient);
    p.exp_avg_sq =
        fmaf(arguments.beta2, p.exp_avg_sq, arguments.one_minus_beta2 * gradient * gradient);
    const float denominator = fmaf(sqrtf(p.exp_avg_sq), factors.denominator, arguments.eps);
    p.master = fmaf(p.master, arguments.decay, -factors.step_size * (p.exp_avg / denominator));
}

__device__ __forceinline__ void update_vector(const AdamWUpdateArguments& arguments, Offset at) {
    const auto g = load_once<kElements>(arguments.gradient_P + at);
    const auto w = load_once<kElements>(static_cast<const float*>(arguments.master_P) + at);
    const auto m = load_once<kElements>(static_cast<const float*>(arguments.exp_avg_P) + at);
    const auto v = load_once<kElements>(static_cast<const float*>(arguments.exp_avg_sq_P) + at);
    const AdamWFactors factors = *arguments.factors;
    float master[kElements];
    float exp_avg[kElements];
    float exp_avg_sq[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
        Parameter p{element(w, e), element(m, e), element(v, e)};
        update(p, element(g, e), factors, arguments);
        master[e] = p.master;
        exp_avg[e] = p.exp_avg;
        exp_avg_sq[e] = p.exp_avg_sq;
    }
    if (factors.skip != 0) {
        return;
    }
    store(arguments.master_P + at, rounded<float>(master));
    store(arguments.exp_avg_P + at, rounded<float>(exp_avg));
    store(arguments.exp_avg_sq_P + at, rounded<float>(exp_avg_sq));
    if (arguments.weight_P != nullptr) {
        store(static_cast<BFloat16*>(arguments.weight_P) + at, rounded<BFloat16>(master));
    }
}

/// The same for one element behind the last whole vector.
__device__ __forceinline__ void update_one(const AdamWUpdateArguments& arguments, Offset at) {
    const AdamWFactors factors = *arguments.factors;
    if (factors.skip != 0) {
        return;
    }
    Parameter p{arguments.master_P[at], arguments.exp_avg_P[at], arguments.exp_avg_sq_P[at]};
    update(p, arguments.gradient_P[at], factors, arguments);
    arguments.master_P[at] = p.master;
    arguments.exp_avg_P[at] = p.exp_avg;
    arguments.exp_avg_sq_P[at] = p.exp_avg_sq;
    if (arguments.weight_P != nullptr) {
        store_one(static_cast<BFloat16*>(arguments.weight_P) + at, p.master);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    adamw_update(const __grid_constant__ AdamWUpdateArguments arguments) {
    const Offset at = (static_cast<Offset>(blockIdx.x) * DFLASH_THREADS + threadIdx.x) * kElements;
    if (at + kElements <= arguments.count) {
        update_vector(arguments, at);
    } else {
        for (Offset i = at; i < arguments.count; ++i) {
            update_one(arguments, i);
        }
    }
}

}  // namespace dflash::kernels
