// SPDX-License-Identifier: Apache-2.0
#include "cuda/head_norm_arguments.cuh"
#include "row_launch.hpp"

#include <dflash/core/check.hpp>
#include <dflash/kernels/head_norm.hpp>
#include <dflash/kernels/rms_norm.hpp>

#include <algorithm>
#include <limits>

namespace dflash::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kForwardVector = 8;
constexpr int kForwardBlocks = 2;
constexpr int kBackwardVector = 4;
constexpr int kBackwardBlocks = 3;
constexpr int kStages = 2;

/// Bytes of a lane's two vectors of bf16 elements and of other elements of that size.
constexpr int lane_bytes(int vector, int other_size) {
    return 2 * vector * (2 + other_size);
}

std::int64_t rotary_columns(const HeadNormShape& shape) {
    const std::int64_t d = shape.head_dim;
    DFLASH_CHECK(
        d == 32 || d == 64 || d == 128 || d == 256, "heads of {}; 32, 64, 128 or 256 expected", d);
    const std::int64_t columns = shape.rotary_columns == 0 ? d : shape.rotary_columns;
    DFLASH_CHECK(columns > 0 && columns <= d && columns % 16 == 0 && (d - columns) % 16 == 0,
                 "{} columns of heads of {} turn; a multiple of 16 up to it expected",
                 columns,
                 d);
    return columns;
}

/// Heads that a block works on at a turn.
std::int64_t units_at_once(const KernelSpec& spec) {
    return spec.threads / (constant_of(spec, "HEAD_DIM") / (2 * constant_of(spec, "VECTOR")));
}

int num_units(std::int64_t num_rows, std::int64_t num_heads) {
    // Warps count beyond the end by a few turns.
    constexpr std::int64_t kMargin = std::int64_t{1} << 24;
    DFLASH_CHECK(num_rows >= 0 && num_heads > 0 &&
                     num_rows * num_heads < std::numeric_limits<int>::max() - kMargin,
                 "{} rows of {} heads",
                 num_rows,
                 num_heads);
    return static_cast<int>(num_rows * num_heads);
}

void check_rotary(const RotaryRows& rotary, std::int64_t pairs) {
    check_aligned(rotary.cos_RF, "cos of the rotary table");
    check_aligned(rotary.sin_RF, "sin of the rotary table");
    DFLASH_CHECK(rotary.row_stride % 4 == 0 && rotary.row_stride >= pairs,
                 "{} elements between rows of a rotary table of {} pairs",
                 rotary.row_stride,
                 pairs);
}

}  // namespace

KernelSpec head_norm_forward_kernel(const HeadNormShape& shape, bool norm) {
    return {.source = "head_norm_forward.cu",
            .entry = "head_norm_forward",
            .constants = {{"HEAD_DIM", shape.head_dim},
                          {"ROTARY", rotary_columns(shape)},
                          {"VECTOR", kForwardVector},
                          {"NORM", norm ? 1 : 0},
                          {"STAGES", kStages}},
            .threads = kThreads,
            .dynamic_shared_bytes = kStages * kThreads * lane_bytes(kForwardVector, 0),
            .min_blocks_per_sm = kForwardBlocks};
}

KernelSpec head_norm_backward_kernel(const HeadNormShape& shape, Element dy) {
    return {.source = "head_norm_backward.cu",
            .entry = "head_norm_backward",
            .constants = {{"HEAD_DIM", shape.head_dim},
                          {"ROTARY", rotary_columns(shape)},
                          {"VECTOR", kBackwardVector},
                          {"DY_FLOAT", is_float(dy)},
                          {"STAGES", kStages}},
            .threads = kThreads,
            .dynamic_shared_bytes =
                kStages * kThreads * lane_bytes(kBackwardVector, dy == Element::Float32 ? 4 : 2),
            .min_blocks_per_sm = kBackwardBlocks};
}

std::vector<KernelSpec> drafter_head_norm_kernels(const HeadNormShape& shape, Element dy) {
    return {head_norm_forward_kernel(shape, /*norm=*/true),
            head_norm_backward_kernel(shape, dy),
            norm_weight_gradient_kernel()};
}

std::vector<KernelSpec> target_head_norm_kernels(const HeadNormShape& shape, bool norm) {
    return {head_norm_forward_kernel(shape, norm)};
}

void head_norm_forward(const LoadedKernel& kernel,
                       const HeadNormForwardTensors& tensors,
                       std::int64_t num_rows,
                       std::int64_t num_heads,
                       double eps,
                       gpu::StreamView stream) {
    check_entry(kernel, "head_norm_forward");
    if (num_rows == 0) {
        return;
    }
    const KernelSpec& spec = kernel.spec();
    const bool norm = constant_of(spec, "NORM") != 0;
    const std::int64_t columns = num_heads * constant_of(spec, "HEAD_DIM");
    check_rows(tensors.x_RND, Element::BFloat16, columns, "x of a head norm");
    check_rows(tensors.y_RND, Element::BFloat16, columns, "y of a head norm");
    check_rotary(tensors.rotary, constant_of(spec, "ROTARY") / 2);
    if (norm) {
        check_aligned(tensors.weight_D, "weight of a head norm");
    } else {
        DFLASH_CHECK(tensors.inverse_rms_RN == nullptr, "{} has no norm", spec.id());
    }
    const int units = num_units(num_rows, num_heads);
    Dim3 grid = grid_of(units, units_at_once(spec));
    // Warps walk over heads, so that more blocks than run at a time only begin anew.
    grid.x = std::min(grid.x, blocks_at_a_time(kernel));
    launch_with(kernel,
                grid,
                HeadNormForwardArguments{.x_RND = tensors.x_RND.data,
                                         .y_RND = tensors.y_RND.data,
                                         .weight_D = tensors.weight_D,
                                         .cos_RF = tensors.rotary.cos_RF,
                                         .sin_RF = tensors.rotary.sin_RF,
                                         .inverse_rms_RN = tensors.inverse_rms_RN,
                                         .x_stride = tensors.x_RND.row_stride,
                                         .y_stride = tensors.y_RND.row_stride,
                                         .table_stride = tensors.rotary.row_stride,
                                         .num_units = units,
                                         .num_heads = narrow<int>(num_heads),
                                         .eps = static_cast<float>(eps)},
                stream);
}

void head_norm_backward(const LoadedKernel& backward,
                        const LoadedKernel& weight_gradient,
                        const HeadNormBackwardTensors& tensors,
                        std::int64_t num_rows,
                        std::int64_t num_heads,
                        const WeightPartials& partials,
                        gpu::StreamView stream) {
    check_entry(backward, "head_norm_backward");
    if (num_rows == 0) {
        return;
    }
    const KernelSpec& spec = backward.spec();
    const bool float_dy = constant_of(spec, "DY_FLOAT") != 0;
    const std::int64_t head_dim = constant_of(spec, "HEAD_DIM");
    const std::int64_t columns = num_heads * head_dim;
    check_rows(tensors.dy_RND,
               float_dy ? Element::Float32 : Element::BFloat16,
               columns,
               "dy of a head norm");
    check_rows(tensors.x_RND, Element::BFloat16, columns, "x of a head norm");
    check_rows(tensors.dx_RND, Element::BFloat16, columns, "dx of a head norm");
    check_rotary(tensors.rotary, constant_of(spec, "ROTARY") / 2);
    check_aligned(tensors.weight_D, "weight of a head norm");
    check_partials(partials);
    DFLASH_CHECK(tensors.inverse_rms_RN != nullptr,
                 "no inverse rms for the backward of a head norm");
    const int units = num_units(num_rows, num_heads);
    Dim3 grid = grid_of(units, units_at_once(spec));
    grid.x = static_cast<std::uint32_t>(std::min<std::int64_t>(grid.x, partials.count));
    launch_with(backward,
                grid,
                HeadNormBackwardArguments{.dy_RND = tensors.dy_RND.data,
                                          .x_RND = tensors.x_RND.data,
                                          .dx_RND = tensors.dx_RND.data,
                                          .weight_D = tensors.weight_D,
                                          .cos_RF = tensors.rotary.cos_RF,
                                          .sin_RF = tensors.rotary.sin_RF,
                                          .inverse_rms_RN = tensors.inverse_rms_RN,
                                          .partials_PD = partials.data,
                                          .dy_stride = tensors.dy_RND.row_stride,
                                          .x_stride = tensors.x_RND.row_stride,
                                          .dx_stride = tensors.dx_RND.row_stride,
                                          .table_stride = tensors.rotary.row_stride,
                                          .num_units = units,
                                          .num_heads = narrow<int>(num_heads)},
                stream);
    add_weight_partials(
        weight_gradient, partials.data, grid.x, tensors.dweight_D, head_dim, stream);
}

}  // namespace dflash::kernels
