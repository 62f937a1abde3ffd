// SPDX-License-Identifier: Apache-2.0
#include "row_launch.hpp"

#include "cuda/rms_norm_arguments.cuh"

#include <dflash/core/check.hpp>
#include <dflash/gpu/check.hpp>

#include <limits>

namespace dflash::kernels {
namespace {

constexpr std::int64_t kSumColumns = 32;  // of a block of norm_weight_gradient

std::uintptr_t address(const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

}  // namespace

void check_entry(const LoadedKernel& kernel, std::string_view entry) {
    DFLASH_CHECK(kernel, "{} is launched before it was loaded", entry);
    DFLASH_CHECK(kernel.spec().entry == entry, "{} for {}", kernel.spec().id(), entry);
}

std::int64_t constant_of(const KernelSpec& spec, std::string_view name) {
    for (const auto& [constant, value] : spec.constants) {
        if (constant == name) {
            return value;
        }
    }
    DFLASH_CHECK(false, "{} has no constant {}", spec.id(), name);
    return 0;
}

void check_rows(const RowTensor& tensor,
                Element element,
                std::int64_t columns,
                std::string_view name) {
    DFLASH_CHECK(tensor.element == element,
                 "{} is {}, {} expected",
                 name,
                 name_of(tensor.element),
                 name_of(element));
    DFLASH_CHECK(tensor.data != nullptr && address(tensor.data) % 16 == 0 &&
                     tensor.row_stride >= columns && tensor.row_stride * size_of(element) % 16 == 0,
                 "{} lies at {} with {} elements between rows of {}; multiples of 16 bytes and no "
                 "overlap expected",
                 name,
                 tensor.data,
                 tensor.row_stride,
                 columns);
}

void check_aligned(const void* pointer, std::string_view name) {
    DFLASH_CHECK(pointer != nullptr && address(pointer) % 16 == 0,
                 "{} lies at {}; a multiple of 16 bytes expected",
                 name,
                 pointer);
}

void check_partials(const WeightPartials& partials) {
    check_aligned(partials.data, "memory for partial weight gradients");
    DFLASH_CHECK(partials.count > 0, "room for {} partial weight gradients", partials.count);
}

Dim3 grid_of(std::int64_t work, std::int64_t work_per_block) {
    const std::int64_t blocks = (work + work_per_block - 1) / work_per_block;
    DFLASH_CHECK(blocks <= std::numeric_limits<std::int32_t>::max(), "{} blocks", blocks);
    return Dim3{static_cast<std::uint32_t>(blocks), 1, 1};
}

std::uint32_t blocks_at_a_time(const LoadedKernel& kernel) {
    int count = 0;
    gpu::check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, kernel.ordinal()));
    return narrow<std::uint32_t>(count * kernel.spec().min_blocks_per_sm);
}

void add_weight_partials(const LoadedKernel& kernel,
                         const float* partials,
                         std::int64_t count,
                         float* dweight,
                         std::int64_t size,
                         gpu::StreamView stream) {
    check_entry(kernel, "norm_weight_gradient");
    DFLASH_CHECK(dweight != nullptr, "no memory for a norm's weight gradient");
    launch_with(kernel,
                grid_of(size, kSumColumns),
                WeightGradientArguments{.partials_PH = partials,
                                        .dweight_H = dweight,
                                        .num_partials = count,
                                        .hidden = narrow<int>(size)},
                stream);
}

}  // namespace dflash::kernels
