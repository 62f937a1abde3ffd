// SPDX-License-Identifier: Apache-2.0
// From the sums of squares of a gradient to what an update is made with: norms, clipping, bias
// corrections, and whether the step is skipped since the gradient is not finite. One block; a warp
// adds the chunks of a piece, in a fixed order.
#include "adamw_arguments.cuh"
#include "row_vectors.cuh"

namespace dflash::kernels {
namespace {

constexpr int kWarps = DFLASH_THREADS / kWarpSize;
constexpr double kClipEpsilon = 1e-6;  // of torch.nn.utils.clip_grad_norm_

}  // namespace

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    adamw_decision(const __grid_constant__ AdamWDecisionArguments arguments) {
    __shared__ double sums[kWarps];
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    double total = 0;  // of this warp's pieces
    for (int piece = warp; piece < arguments.num_pieces; piece += kWarps) {
        const int end = arguments.first_chunk_N1[piece + 1];
        double sum = 0;
        for (int chunk = arguments.first_chunk_N1[piece] + lane; chunk < end; chunk += kWarpSize) {
            sum += arguments.squares[chunk];
        }
#pragma unroll
        for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
            sum += __shfl_xor_sync(kAllLanes, sum, distance);
        }
        if (lane == 0) {
            arguments.piece_norms_N[piece] = sqrt(sum);
        }
        total += sum;
    }
    if (lane == 0) {
        sums[warp] = total;
    }
    __syncthreads();
    if (threadIdx.x != 0) {
        return;
    }
    double squares = 0;
    for (int w = 0; w < kWarps; ++w) {
        squares += sums[w];
    }
    const double norm = sqrt(squares) * arguments.scale;
    *arguments.norm = norm;
    // x - x is 0 for every finite x and NaN for the others.
    const bool skip = !(norm - norm == 0.0);
    const float steps = *arguments.steps + (skip ? 0.0f : 1.0f);
    *arguments.steps = steps;
    double factor = arguments.scale;
    if (arguments.clip > 0) {
        factor *= fmin(1.0, arguments.clip / (norm + kClipEpsilon));
    }
    const double taken = static_cast<double>(steps);
    AdamWFactors factors;
    factors.gradient = static_cast<float>(factor);
    factors.step_size =
        static_cast<float>(arguments.learning_rate / (1.0 - pow(arguments.beta1, taken)));
    factors.denominator = static_cast<float>(1.0 / sqrt(1.0 - pow(arguments.beta2, taken)));
    factors.skip = skip ? 1 : 0;
    *arguments.factors = factors;
}

}  // namespace dflash::kernels
