// SPDX-License-Identifier: Apache-2.0
// Checks and launches that the row-wise kernels share.
#pragma once

#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/kernel_spec.hpp>
#include <dflash/kernels/launch.hpp>
#include <dflash/kernels/row_tensor.hpp>

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace dflash::kernels {

/// Internal error unless the kernel was loaded and is an instance of `entry`.
void check_entry(const LoadedKernel& kernel, std::string_view entry);

/// Value of one of the instance's constants; internal error if it has none of that name.
std::int64_t constant_of(const KernelSpec& spec, std::string_view name);

/// Whether a tensor is fp32, as a constant.
inline std::int64_t is_float(Element element) {
    return element == Element::Float32 ? 1 : 0;
}

/// Internal error unless the tensor is there, of that type and aligned. `columns` are read or
/// written in each row.
void check_rows(const RowTensor& tensor,
                Element element,
                std::int64_t columns,
                std::string_view name);

/// Internal error unless `pointer` is there and aligned to 16 bytes.
void check_aligned(const void* pointer, std::string_view name);

/// Internal error unless there is room for at least one set of sums.
void check_partials(const WeightPartials& partials);

/// Number of blocks for that much work, as a grid.
Dim3 grid_of(std::int64_t work, std::int64_t work_per_block);

/// Blocks of the kernel that its device runs at a time.
std::uint32_t blocks_at_a_time(const LoadedKernel& kernel);

/// Launches with a struct as the only parameter.
template <typename Arguments>
void launch_with(const LoadedKernel& kernel,
                 Dim3 grid,
                 Arguments arguments,
                 gpu::StreamView stream) {
    static_assert(std::is_trivially_copyable_v<Arguments>);
    void* const pointers[] = {&arguments};
    launch(kernel, grid, pointers, stream);
}

/// dw += the sum of the first `count` partials.
void add_weight_partials(const LoadedKernel& kernel,
                         const float* partials,
                         std::int64_t count,
                         float* dweight,
                         std::int64_t size,
                         gpu::StreamView stream);

}  // namespace dflash::kernels
