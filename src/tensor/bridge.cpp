// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/activity.hpp>
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/tensor/bridge.hpp>

#include <array>
#include <c10/cuda/CUDAStream.h>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utility>

namespace dflash::tensor {
namespace {

constexpr std::array<std::pair<io::DType, at::ScalarType>, 11> kDtypes{{
    {io::DType::Bool, at::kBool},
    {io::DType::U8, at::kByte},
    {io::DType::I8, at::kChar},
    {io::DType::I16, at::kShort},
    {io::DType::I32, at::kInt},
    {io::DType::I64, at::kLong},
    {io::DType::F8E4M3, at::kFloat8_e4m3fn},
    {io::DType::F16, at::kHalf},
    {io::DType::BF16, at::kBFloat16},
    {io::DType::F32, at::kFloat},
    {io::DType::F64, at::kDouble},
}};

/// The bytes of a file as a CPU tensor of the file's dtype. Copied, because a mapping puts tensors
/// at any address and vector loads need alignment.
at::Tensor aligned_copy(const io::TensorView& view) {
    at::Tensor stored =
        at::empty(view.shape, at::TensorOptions(scalar_type(view.dtype)).device(at::kCPU));
    DFLASH_CHECK(stored.nbytes() == view.data.size(),
                 "{}: {} bytes for shape [{}]",
                 view.name,
                 view.data.size(),
                 fmt::join(view.shape, ", "));
    if (!view.data.empty()) {
        std::memcpy(stored.data_ptr(), view.data.data(), view.data.size());
    }
    return stored;
}

void expect_same_kind(const io::TensorView& view, at::ScalarType dtype, const std::string& where) {
    if (at::isFloatingType(scalar_type(view.dtype)) != at::isFloatingType(dtype)) {
        throw Error(ErrorKind::Data,
                    {.what = fmt::format("tensor {}: got {}, expected {} values",
                                         view.name,
                                         io::describe(view),
                                         at::isFloatingType(dtype) ? "floating-point" : "integer"),
                     .where = where,
                     .cause = {},
                     .hint = {}});
    }
}

/// On the host. Page-locked, a copy of it to the device needs no wait: LibTorch keeps the memory
/// until the stream has passed it.
template <class T>
at::Tensor host_array(std::span<const T> values, bool page_locked) {
    at::Tensor result = at::empty(
        {narrow<std::int64_t>(values.size())},
        at::TensorOptions().dtype(at::CppTypeToScalarType<T>::value).pinned_memory(page_locked));
    if (!values.empty()) {
        std::memcpy(result.data_ptr(), values.data(), values.size_bytes());
    }
    return result;
}

template <class T>
at::Tensor upload_array(std::span<const T> values, at::Device device) {
    return host_array(values, device.is_cuda()).to(device, /*non_blocking=*/device.is_cuda());
}

}  // namespace

at::ScalarType scalar_type(io::DType dtype) {
    for (const auto& [file, torch] : kDtypes) {
        if (file == dtype) {
            return torch;
        }
    }
    fail_check("scalar_type", "unknown dtype of a file", std::source_location::current());
}

io::DType file_dtype(at::ScalarType dtype) {
    for (const auto& [file, torch] : kDtypes) {
        if (torch == dtype) {
            return file;
        }
    }
    fail_check("file_dtype",
               fmt::format("no file dtype for {}", at::toString(dtype)),
               std::source_location::current());
}

at::Device torch_device(const gpu::Device& device) {
    return device.is_cuda() ? at::Device(at::kCUDA, narrow<at::DeviceIndex>(device.ordinal))
                            : at::Device(at::kCPU);
}

gpu::StreamView current_stream(at::Device device) {
    if (!device.is_cuda()) {
        return {};
    }
    return gpu::StreamView(c10::cuda::getCurrentCUDAStream(device.index()).stream());
}

at::ScalarType sum_dtype(at::ScalarType compute_dtype) {
    return compute_dtype == at::kDouble ? at::kDouble : at::kFloat;
}

void expect_shape(const at::Tensor& tensor,
                  std::initializer_list<std::int64_t> expected,
                  std::string_view name) {
    DFLASH_CHECK(tensor.defined(), "{}: no tensor, expected [{}]", name, fmt::join(expected, ", "));
    bool same = tensor.dim() == narrow<std::int64_t>(expected.size());
    std::int64_t i = 0;
    for (const std::int64_t size : expected) {
        same = same && (size == kAny || tensor.size(i) == size);
        ++i;
    }
    DFLASH_CHECK(same,
                 "{}: got shape [{}], expected [{}] (-1: any)",
                 name,
                 fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "),
                 fmt::join(expected, ", "));
}

void expect_dtype(const at::Tensor& tensor, at::ScalarType expected, std::string_view name) {
    DFLASH_CHECK(tensor.scalar_type() == expected,
                 "{}: got {}, expected {}",
                 name,
                 at::toString(tensor.scalar_type()),
                 at::toString(expected));
}

void expect_file_shape(const io::TensorView& view,
                       std::span<const std::int64_t> expected,
                       const std::string& where) {
    if (!std::equal(view.shape.begin(), view.shape.end(), expected.begin(), expected.end())) {
        throw Error(ErrorKind::Data,
                    {.what = fmt::format("tensor {}: got shape [{}], expected [{}]",
                                         view.name,
                                         fmt::join(view.shape, ", "),
                                         fmt::join(expected.begin(), expected.end(), ", ")),
                     .where = where,
                     .cause = {},
                     .hint = "use the config.json and the weights of one checkpoint"});
    }
}

at::Tensor load(const io::TensorView& view, at::Device device, at::ScalarType dtype) {
    expect_same_kind(view, dtype, {});
    note_progress();
    return aligned_copy(view).to(device, dtype);
}

void load_into(const io::TensorView& view,
               const at::Tensor& destination,
               const std::string& where) {
    expect_file_shape(view, {destination.sizes().data(), destination.sizes().size()}, where);
    expect_same_kind(view, destination.scalar_type(), where);
    destination.copy_(aligned_copy(view));
    note_progress();
}

std::span<const std::byte> bytes_of(const at::Tensor& contiguous_cpu) {
    DFLASH_CHECK(contiguous_cpu.is_contiguous() && contiguous_cpu.device().is_cpu(),
                 "bytes_of needs a contiguous CPU tensor");
    return {static_cast<const std::byte*>(contiguous_cpu.data_ptr()), contiguous_cpu.nbytes()};
}

at::Tensor upload(std::span<const std::int32_t> values, at::Device device) {
    return upload_array(values, device);
}

at::Tensor upload(std::span<const std::int64_t> values, at::Device device) {
    return upload_array(values, device);
}

at::Tensor upload(std::span<const float> values, at::Device device) {
    return upload_array(values, device);
}

void upload_into(const at::Tensor& destination, std::span<const std::int32_t> values) {
    expect_shape(destination, {narrow<std::int64_t>(values.size())}, "destination of an upload");
    const bool on_gpu = destination.is_cuda();
    destination.copy_(host_array(values, on_gpu), /*non_blocking=*/on_gpu);
}

}  // namespace dflash::tensor
