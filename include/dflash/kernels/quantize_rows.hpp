// SPDX-License-Identifier: Apache-2.0
// Rows of bf16 as 8-bit numbers with a scale for each row, as a CUDA kernel: for products whose
// operands are of 8 bits (gemm.hpp).
//
// Results are the same bit for bit every time. Asynchronous on the stream given last, a stream of
// the kernel's device; nothing is allocated, and without rows nothing is launched. Shapes, types
// and alignment are checked: Error{Internal}.
#pragma once

#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/architecture.hpp>
#include <dflash/kernels/kernel_spec.hpp>
#include <dflash/kernels/launch.hpp>
#include <dflash/kernels/row_tensor.hpp>

#include <cstdint>

namespace dflash::kernels {

/// Whether GPUs of that architecture convert to 8-bit numbers: from compute capability 8.9 on.
bool has_float8(const Architecture& architecture);

/// Serves rows of any length that is a multiple of 8.
KernelSpec quantize_rows_kernel();

/// scale = largest |x| / 448 and y = x (448 / largest |x|) in fp32, rounded to the nearest e4m3,
/// ties to even. Rows with no magnitude from 2^-100 on give zeros. A value that is not finite gives
/// a y that is not, or a scale that is not.
void quantize_rows(const LoadedKernel& kernel,
                   const RowTensor& y_RC,
                   float* scale_R,
                   const RowTensor& x_RC,
                   std::int64_t num_rows,
                   std::int64_t columns,
                   gpu::StreamView stream);

}  // namespace dflash::kernels
