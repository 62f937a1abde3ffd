// SPDX-License-Identifier: Apache-2.0
#include "cuda/rms_norm_arguments.cuh"
#include "row_launch.hpp"

#include <dflash/core/check.hpp>
#include <dflash/kernels/rms_norm.hpp>

#include <algorithm>

namespace dflash::kernels {
namespace {

constexpr int kWarpSize = 32;
constexpr int kMaxWarps = 24;

// Registers bound how much of a row a lane can hold: the forward has x and w of it, the backward w,
// the sums of dw, the dx that it adds to and the one that it makes.
constexpr int kForwardElements = 32;
constexpr int kBackwardElements = 8;
constexpr int kBackwardElementsOfLongRows = 16;  // in fewer threads, which have more registers each
constexpr std::int64_t kLongRow = 6144;

// Threads of a multiprocessor that the registers must allow for.
constexpr int kForwardThreads = 768;
constexpr int kBackwardThreads = 512;

// What a multiprocessor has on its way in the backward to keep the memory busy, and the dynamic
// shared memory of a block that every architecture in use has beside the static one.
constexpr std::int64_t kStagedBytes = std::int64_t{48} << 10;
constexpr std::int64_t kMaxStagedBytes = std::int64_t{96} << 10;
constexpr std::int64_t kMaxStages = 4;

constexpr int kForwardRowsOfOneWarp = 4;
constexpr int kBackwardRowsOfOneWarp = 8;

std::int64_t vectors_of_lane(std::int64_t hidden, int vector, int warps) {
    const int lanes = warps * kWarpSize;
    return (hidden / vector + lanes - 1) / lanes;
}

/// How a row is spread: `warps` of lanes with up to `vectors` vectors each, with as few places
/// beyond the end of the row as possible, then with as few warps.
int warps_of_row(std::int64_t hidden, int vector, int max_elements) {
    DFLASH_CHECK(hidden >= 64 && hidden <= 8192 && hidden % 8 == 0,
                 "norm of rows of {}; multiples of 8 from 64 to 8192 expected",
                 hidden);
    int best = 0;
    std::int64_t best_places = 0;
    for (int warps = 1; warps <= kMaxWarps; ++warps) {
        const std::int64_t of_lane = vectors_of_lane(hidden, vector, warps);
        const std::int64_t places = of_lane * warps;
        if (of_lane * vector <= max_elements && (best == 0 || places < best_places)) {
            best = warps;
            best_places = places;
        }
    }
    DFLASH_CHECK(best > 0, "rows of {} do not fit into a block", hidden);
    return best;
}

/// Elements of a vector: 16 bytes of the widest type.
int vector_of(std::initializer_list<Element> elements) {
    return std::find(elements.begin(), elements.end(), Element::Float32) != elements.end() ? 4 : 8;
}

Element element_of(const KernelSpec& spec, std::string_view constant) {
    return constant_of(spec, constant) != 0 ? Element::Float32 : Element::BFloat16;
}

std::int64_t rows_of_block(const KernelSpec& spec) {
    return spec.threads / (kWarpSize * constant_of(spec, "WARPS"));
}

}  // namespace

KernelSpec rms_norm_forward_kernel(const RmsNormForwardShape& shape) {
    DFLASH_CHECK(!shape.add_to_residual || shape.x == Element::BFloat16,
                 "only bf16 rows are added to a residual");
    const int vector = vector_of({shape.x});
    const int warps = warps_of_row(shape.hidden, vector, kForwardElements);
    const int threads = kWarpSize * (warps == 1 ? kForwardRowsOfOneWarp : warps);
    return {.source = "rms_norm_forward.cu",
            .entry = "rms_norm_forward",
            .constants = {{"HIDDEN", shape.hidden},
                          {"VECTOR", vector},
                          {"WARPS", warps},
                          {"X_FLOAT", is_float(shape.x)},
                          {"RESIDUAL", shape.add_to_residual ? 1 : 0}},
            .threads = threads,
            .min_blocks_per_sm = std::max(1, kForwardThreads / threads)};
}

KernelSpec rms_norm_backward_kernel(const RmsNormBackwardShape& shape) {
    const int vector = vector_of({shape.x, shape.dy, shape.dx});
    const int warps =
        warps_of_row(shape.hidden,
                     vector,
                     shape.hidden > kLongRow ? kBackwardElementsOfLongRows : kBackwardElements);
    const int threads = kWarpSize * (warps == 1 ? kBackwardRowsOfOneWarp : warps);
    const std::int64_t stage_bytes = threads * vectors_of_lane(shape.hidden, vector, warps) *
                                     vector * (size_of(shape.x) + size_of(shape.dy));
    const int blocks = std::max(1, kBackwardThreads / threads);
    const std::int64_t wanted =
        std::clamp<std::int64_t>(kStagedBytes / (blocks * stage_bytes), 2, kMaxStages);
    const std::int64_t stages = std::min(wanted, kMaxStagedBytes / stage_bytes);
    return {.source = "rms_norm_backward.cu",
            .entry = "rms_norm_backward",
            .constants = {{"HIDDEN", shape.hidden},
                          {"VECTOR", vector},
                          {"WARPS", warps},
                          {"X_FLOAT", is_float(shape.x)},
                          {"DY_FLOAT", is_float(shape.dy)},
                          {"DX_FLOAT", is_float(shape.dx)},
                          {"ADD", shape.add ? 1 : 0},
                          {"STAGES", stages}},
            .threads = threads,
            .dynamic_shared_bytes = narrow<int>(stages * stage_bytes),
            .min_blocks_per_sm = blocks};
}

KernelSpec norm_weight_gradient_kernel() {
    return {.source = "rms_norm_weight.cu", .entry = "norm_weight_gradient", .threads = 512};
}

std::vector<KernelSpec> drafter_rms_norm_kernels(std::int64_t hidden) {
    constexpr Element kBf16 = Element::BFloat16;
    constexpr Element kFp32 = Element::Float32;
    return {
        rms_norm_forward_kernel({.hidden = hidden, .x = kBf16}),
        rms_norm_forward_kernel({.hidden = hidden, .x = kFp32}),
        // The layers', the head's, the context's.
        rms_norm_backward_kernel(
            {.hidden = hidden, .x = kBf16, .dy = kFp32, .dx = kFp32, .add = true}),
        rms_norm_backward_kernel({.hidden = hidden, .x = kBf16, .dy = kFp32, .dx = kFp32}),
        rms_norm_backward_kernel({.hidden = hidden, .x = kFp32, .dy = kFp32, .dx = kBf16}),
        norm_weight_gradient_kernel(),
    };
}

std::vector<KernelSpec> target_rms_norm_kernels(std::int64_t hidden) {
    return {rms_norm_forward_kernel({.hidden = hidden}),
            rms_norm_forward_kernel({.hidden = hidden, .add_to_residual = true})};
}

std::int64_t weight_partials_count(const KernelSpec& backward, int num_multiprocessors) {
    return std::int64_t{num_multiprocessors} * backward.min_blocks_per_sm;
}

void rms_norm_forward(const LoadedKernel& kernel,
                      const RmsNormForwardTensors& tensors,
                      std::int64_t num_rows,
                      double eps,
                      gpu::StreamView stream) {
    check_entry(kernel, "rms_norm_forward");
    if (num_rows == 0) {
        return;
    }
    const KernelSpec& spec = kernel.spec();
    const std::int64_t hidden = constant_of(spec, "HIDDEN");
    check_rows(tensors.x_RH, element_of(spec, "X_FLOAT"), hidden, "x of a norm");
    check_rows(tensors.y_RH, Element::BFloat16, hidden, "y of a norm");
    check_aligned(tensors.weight_H, "weight of a norm");
    if (constant_of(spec, "RESIDUAL") != 0) {
        check_rows(tensors.residual_RH, Element::BFloat16, hidden, "residual of a norm");
    } else {
        DFLASH_CHECK(tensors.residual_RH.data == nullptr, "{} has no residual", spec.id());
    }
    launch_with(kernel,
                grid_of(num_rows, rows_of_block(spec)),
                RmsNormForwardArguments{.x_RH = tensors.x_RH.data,
                                        .residual_RH = tensors.residual_RH.data,
                                        .y_RH = tensors.y_RH.data,
                                        .weight_H = tensors.weight_H,
                                        .inverse_rms_R = tensors.inverse_rms_R,
                                        .known_R = tensors.known_inverse_rms_R,
                                        .x_stride = tensors.x_RH.row_stride,
                                        .residual_stride = tensors.residual_RH.row_stride,
                                        .y_stride = tensors.y_RH.row_stride,
                                        .num_rows = num_rows,
                                        .eps = static_cast<float>(eps)},
                stream);
}

void rms_norm_backward(const LoadedKernel& backward,
                       const LoadedKernel& weight_gradient,
                       const RmsNormBackwardTensors& tensors,
                       std::int64_t num_rows,
                       const WeightPartials& partials,
                       gpu::StreamView stream) {
    check_entry(backward, "rms_norm_backward");
    if (num_rows == 0) {
        return;
    }
    const KernelSpec& spec = backward.spec();
    const std::int64_t hidden = constant_of(spec, "HIDDEN");
    check_rows(tensors.x_RH, element_of(spec, "X_FLOAT"), hidden, "x of a norm");
    check_rows(tensors.dy_RH, element_of(spec, "DY_FLOAT"), hidden, "dy of a norm");
    check_rows(tensors.dx_RH, element_of(spec, "DX_FLOAT"), hidden, "dx of a norm");
    if (tensors.dx_rounded_RH.data != nullptr) {
        check_rows(tensors.dx_rounded_RH, Element::BFloat16, hidden, "rounded dx of a norm");
    }
    if (tensors.y_RH.data != nullptr) {
        check_rows(tensors.y_RH, Element::BFloat16, hidden, "y of a norm");
    }
    check_aligned(tensors.weight_H, "weight of a norm");
    check_partials(partials);
    DFLASH_CHECK(tensors.inverse_rms_R != nullptr, "no inverse rms for the backward of a norm");
    Dim3 grid = grid_of(num_rows, rows_of_block(spec));
    grid.x = static_cast<std::uint32_t>(std::min<std::int64_t>(grid.x, partials.count));
    launch_with(backward,
                grid,
                RmsNormBackwardArguments{.dy_RH = tensors.dy_RH.data,
                                         .x_RH = tensors.x_RH.data,
                                         .weight_H = tensors.weight_H,
                                         .inverse_rms_R = tensors.inverse_rms_R,
                                         .dx_RH = tensors.dx_RH.data,
                                         .dx_rounded_RH = tensors.dx_rounded_RH.data,
                                         .y_RH = tensors.y_RH.data,
                                         .partials_PH = partials.data,
                                         .dy_stride = tensors.dy_RH.row_stride,
                                         .x_stride = tensors.x_RH.row_stride,
                                         .dx_stride = tensors.dx_RH.row_stride,
                                         .dx_rounded_stride = tensors.dx_rounded_RH.row_stride,
                                         .y_stride = tensors.y_RH.row_stride,
                                         .num_rows = num_rows},
                stream);
    add_weight_partials(weight_gradient, partials.data, grid.x, tensors.dweight_H, hidden, stream);
}

}  // namespace dflash::kernels
