// SPDX-License-Identifier: Apache-2.0
// The bridge to LibTorch: dtypes and devices of this program as Torch's, tensors of files as
// at::Tensor, and shape checks with names.
//
// Nothing in this program records an autograd graph: backward passes are written by hand. Tensors
// here never require gradients.
#pragma once

#include <dflash/gpu/device.hpp>
#include <dflash/gpu/stream.hpp>
#include <dflash/io/safetensors.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace dflash::tensor {

/// Torch's name of a dtype of a file.
at::ScalarType scalar_type(io::DType dtype);

/// A file's name of one of Torch's dtypes; an internal error for one that safetensors files of this
/// program never hold.
io::DType file_dtype(at::ScalarType dtype);

/// Torch's device: logical CPU devices are all Torch's one CPU, logical CUDA devices their ordinal.
at::Device torch_device(const gpu::Device& device);

/// The current Torch stream of this thread on a device; the empty view for the CPU.
gpu::StreamView current_stream(at::Device device);

/// The dtype that sums are kept in: fp32 for bf16, fp16 and fp32; fp64 for fp64 (tests only).
at::ScalarType sum_dtype(at::ScalarType compute_dtype);

/// Any number of elements, in expect_shape.
inline constexpr std::int64_t kAny = -1;

/// Contract between modules: internal error naming `name`, the shape got and the shape expected.
void expect_shape(const at::Tensor& tensor,
                  std::initializer_list<std::int64_t> expected,
                  std::string_view name);

/// Contract between modules: internal error naming `name`, the dtype got and the dtype expected.
void expect_dtype(const at::Tensor& tensor, at::ScalarType expected, std::string_view name);

/// What a file has to hold. Throws Error{Data} with name, shape got, shape expected and `where`.
void expect_file_shape(const io::TensorView& view,
                       std::span<const std::int64_t> expected,
                       const std::string& where);

/// A new tensor with the values of a tensor of a file, converted to `dtype` on `device`. The file's
/// bytes may lie at any alignment. Waits for the copy, so the mapping may go afterwards. Throws
/// Error{Data} for a floating dtype asked of an integer tensor or the reverse.
at::Tensor load(const io::TensorView& view, at::Device device, at::ScalarType dtype);

/// The same into an existing tensor (of any strides) of that shape. Error{Data} with `where` if the
/// shape differs.
void load_into(const io::TensorView& view, const at::Tensor& destination, const std::string& where);

/// Bytes of the elements of a contiguous CPU tensor, as a file's raw data.
std::span<const std::byte> bytes_of(const at::Tensor& contiguous_cpu);

/// A tensor [n] on `device` with the values of a host array. On CUDA the copy is ordered on the
/// current stream; the array may go when this returns.
at::Tensor upload(std::span<const std::int32_t> values, at::Device device);
at::Tensor upload(std::span<const std::int64_t> values, at::Device device);
at::Tensor upload(std::span<const float> values, at::Device device);

/// The same into a contiguous tensor [n] that is there.
void upload_into(const at::Tensor& destination, std::span<const std::int32_t> values);

}  // namespace dflash::tensor
