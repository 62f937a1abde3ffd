// SPDX-License-Identifier: Apache-2.0
#include "cuda/quantize_rows_arguments.cuh"
#include "row_launch.hpp"

#include <dflash/core/check.hpp>
#include <dflash/kernels/quantize_rows.hpp>

namespace dflash::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kKept = 4;  // rows of up to 8192 stay in registers
constexpr int kBlocks = 4;
constexpr std::int64_t kVectorSize = 8;
constexpr int kFirstWithFloat8 = 89;

}  // namespace

bool has_float8(const Architecture& architecture) {
    return architecture.number() >= kFirstWithFloat8;
}

KernelSpec quantize_rows_kernel() {
    return {.source = "quantize_rows.cu",
            .entry = "quantize_rows",
            .constants = {{"KEPT", kKept}},
            .threads = kThreads,
            .min_blocks_per_sm = kBlocks};
}

void quantize_rows(const LoadedKernel& kernel,
                   const RowTensor& y_RC,
                   float* scale_R,
                   const RowTensor& x_RC,
                   std::int64_t num_rows,
                   std::int64_t columns,
                   gpu::StreamView stream) {
    check_entry(kernel, "quantize_rows");
    if (num_rows == 0) {
        return;
    }
    DFLASH_CHECK(columns > 0 && columns % kVectorSize == 0,
                 "rows of {}; a multiple of {} expected",
                 columns,
                 kVectorSize);
    check_rows(x_RC, Element::BFloat16, columns, "rows to round");
    check_rows(y_RC, Element::Float8E4M3, columns, "rows of 8 bits");
    DFLASH_CHECK(scale_R != nullptr, "no memory for scales");
    launch_with(kernel,
                grid_of(num_rows, 1),
                QuantizeRowsArguments{.x_RC = x_RC.data,
                                      .y_RC = y_RC.data,
                                      .scale_R = scale_R,
                                      .x_stride = x_RC.row_stride,
                                      .y_stride = y_RC.row_stride,
                                      .columns = narrow<int>(columns)},
                stream);
}

}  // namespace dflash::kernels
